# Sets `commit` of the tree `source`: twelve digits, and "-changed" when the tree is not that commit's; "unknown" without git.
execute_process(COMMAND git -C ${source} rev-parse --short=12 HEAD OUTPUT_VARIABLE commit RESULT_VARIABLE failed
                OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(failed)
  set(commit unknown)
else()
  execute_process(COMMAND git -C ${source} status --porcelain OUTPUT_VARIABLE changes ERROR_QUIET)
  if(changes)
    string(APPEND commit -changed)
  endif()
endif()
