# What an installation makes: see package.cmake for the variables.
include(${source}/deploy/package_commit.cmake)
set(root "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}")
file(WRITE "${root}/share/trainerd/BUILD" "version: ${version}\ncommit: ${commit}\ncuda_architectures: ${architectures}\n")

# Man pages and completion, by the executable itself.
execute_process(COMMAND ${binary} man --out "${root}/share/man" COMMAND_ERROR_IS_FATAL ANY)
# Debian's own packages keep zsh's elsewhere than what an administrator installs.
set(zsh share/zsh/site-functions)
if(CMAKE_INSTALL_PREFIX STREQUAL /usr)
  set(zsh share/zsh/vendor-completions)
endif()
foreach(place bash:share/bash-completion/completions/trainerd zsh:${zsh}/_trainerd fish:share/fish/vendor_completions.d/trainerd.fish)
  string(REGEX MATCH "^([^:]+):(.+)/([^/]+)$" none ${place})
  set(shell ${CMAKE_MATCH_1})
  set(folder "${root}/${CMAKE_MATCH_2}")
  set(name ${CMAKE_MATCH_3})
  file(MAKE_DIRECTORY "${folder}")
  execute_process(COMMAND ${binary} completion ${shell} OUTPUT_FILE "${folder}/${name}" COMMAND_ERROR_IS_FATAL ANY)
endforeach()

file(COPY ${source}/deploy/copyright DESTINATION "${root}/share/doc/trainerd")
# Debian's own form, compressed; everywhere else pages are read as they are.
if(CMAKE_INSTALL_PREFIX STREQUAL /usr)
  execute_process(COMMAND git -C ${source} log -1 --format=%cD OUTPUT_VARIABLE date OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT date)
    string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
  endif()
  file(WRITE "${root}/share/doc/trainerd/changelog" "trainerd (${version}) unstable; urgency=medium

  * Commit ${commit}.
  * What changed is in /usr/share/trainerd/CHANGELOG.md.

 -- ${maintainer}  ${date}
")
  file(GLOB compressed "${root}/share/man/man*/trainerd*.[15]" "${root}/share/doc/trainerd/changelog")
  execute_process(COMMAND gzip -9nf ${compressed} COMMAND_ERROR_IS_FATAL ANY)
endif()
