"""The order of folders and of the rooms inside them. A room is a directory of sources, declared by a line `trainerd_room(path ...
USES ...)` of a CMakeLists.txt or *.cmake file. It may include headers only of the rooms that it uses, directly or indirectly."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
LADDER = ["kernels", "parallel", "io", "core", "apps"]
MAX_LINES = 450
# Maximum number of files that name an operator, by place. A new operator is named in files of `kernels/` and in each world that has
# it. Files above kernels/ that use it are only printed.
PLACES_OF_AN_OPERATOR = {"kernels/, outside of the worlds": 6, "kernels/cpu/": 4, "kernels/cuda/": 5}
# Operators above these limits: the exact number of files, and the reason. Any other number fails.
EXEMPT_OPERATORS = {
    ("kernels/, outside of the worlds", "prepare_weight"):
        (9, "each backend answers prepared_bytes of its arguments, so every class of backend names them once more"),
    ("kernels/cuda/", "attention_forward"): (8, "two kernels (general, tensor cores), with a problem and scratch of their own"),
    ("kernels/cuda/", "attention_backward"): (9, "two kernels (general, tensor cores), with a problem and scratch of their own"),
}
# Operator names that are common words: only their argument struct counts.
WORDS = {"add", "scale", "cast", "dropout"}
# Files with a group's name as text: how often, and why. All other files use parallel::Group.
GROUP_NAMES = {
    "parallel/group/group.h": (10, "the table of groups"),
    "kernels/base/ledger.h": (4, "names of the ledger's parts"),
    "parallel/layout/grid.cpp": (3, "names of axes"),
    "parallel/comm/nccl/plugin/nccl_rank_world.cpp": (1, "the name of its first communicator"),
    "core/spec/parallel_fields.cpp": (2, "job keys"),
    "core/run/wire/layout_json.cpp": (3, "job keys in messages"),
    "core/run/agent/replan.cpp": (6, "job keys in checkpoints and logs"),
    "core/plan/search/search_report.cpp": (6, "job keys in JSON and a table's columns"),
}


def sources():
    for folder in LADDER:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".h", ".cpp", ".cu", ".cuh"}:
                yield path


def room_of(path):
    return str(path.relative_to(ROOT).parent)


def includes(path):
    return re.findall(r'^\s*#\s*include\s*"([^"]+)"', path.read_text(), re.M)


def declared_rooms():
    """Room -> the rooms that it declares to use."""
    rooms = {"apps": [f for f in LADDER if f != "apps"]}
    for folder in LADDER:
        for path in [*(ROOT / folder).rglob("CMakeLists.txt"), *(ROOT / folder).rglob("*.cmake")]:
            for declaration in re.findall(r"^\s*trainerd_room\(([^)]*)\)", path.read_text(), re.M):
                words = declaration.split()
                uses, reading = [], False
                for word in words[1:]:
                    if word.isupper():
                        reading = word == "USES"
                    elif reading:
                        uses.append(word)
                if words[0] in rooms:
                    raise AssertionError(f"{words[0]} is declared twice")
                rooms[words[0]] = uses
    return rooms


def closure(rooms):
    """Room -> all rooms that it may include. Fails if rooms use each other."""
    reached = {}

    def visit(room, path):
        if room in path:
            raise AssertionError("rooms use each other: " + " -> ".join([*path[path.index(room):], room]))
        if room not in reached:
            below = set()
            for used in rooms[room]:
                if used not in rooms:
                    raise AssertionError(f"{room} uses {used}, which is no room")
                below |= {used} | visit(used, [*path, room])
            reached[room] = below
        return reached[room]

    for room in rooms:
        if room != "apps":
            visit(room, [])
    return reached


class Structure(unittest.TestCase):
    def test_rooms_use_each_other_in_one_direction_and_down_the_ladder(self):
        reached = closure(declared_rooms())
        up = [f"{room} uses {used}" for room, below in reached.items() for used in below
              if LADDER.index(used.split("/")[0]) > LADDER.index(room.split("/")[0])]
        self.assertGreater(len(reached), 40)
        self.assertEqual(up, [])

    def test_namespaces_follow_folders_and_in_core_rooms(self):
        wrong = []
        for path in sources():
            parts = path.relative_to(ROOT).parts
            namespace = "trainerd::" + "::".join(parts[:2] if parts[0] == "core" else parts[:1])
            if parts[:2] == ("kernels", "base"):
                namespace = "trainerd::base"
            wrong += [f"{path.relative_to(ROOT)}: {found}, not {namespace}"
                      for found in re.findall(r"^namespace (trainerd[\w:]*) \{", path.read_text(), re.M)
                      if found != namespace and not found.startswith(namespace + "::")]
        self.assertEqual(wrong, [])

    def test_a_cycle_of_rooms_is_found(self):
        with self.assertRaisesRegex(AssertionError, "a -> b -> a"):
            closure({"a": ["b"], "b": ["a"]})

    def test_every_source_is_in_a_room(self):
        rooms = declared_rooms()
        homeless = [str(p.relative_to(ROOT)) for p in sources() if room_of(p) not in rooms]
        self.assertEqual(homeless, [])
        self.assertEqual([room for room in rooms if not (ROOT / room).is_dir()], [])

    def test_includes_are_of_rooms_that_the_room_uses(self):
        reached = closure(declared_rooms())
        wrong, seen = [], 0
        for path in sources():
            room = room_of(path)
            for included in includes(path):
                seen += 1
                target = str(pathlib.PurePosixPath(included).parent)
                if not (ROOT / included).is_file():
                    wrong.append(f"{path.relative_to(ROOT)} includes {included}: not from the root of the tree")
                elif room != "apps" and target != room and target not in reached[room]:
                    wrong.append(f"{path.relative_to(ROOT)} includes {included}: {room} does not use {target}")
        self.assertGreater(seen, 1000)
        self.assertEqual(wrong, [])

    def test_tests_are_in_folders_of_the_rooms_that_they_test(self):
        """Each room in ROOMS of a folder's test executable is a directory of the code, and each test lies in such a room."""
        cmake = (ROOT / "tests" / "CMakeLists.txt").read_text()
        listed = {folder: set(rooms.split()) for folder, rooms in
                  re.findall(r"^add_folder_tests\((\w+) [^)]*?ROOMS ((?:[a-z0-9_/]+ ?)+)", cmake, re.M)}
        self.assertEqual(sorted(listed), ["core", "io", "kernels", "parallel"])
        for folder, rooms in listed.items():
            self.assertEqual([room for room in rooms if not (ROOT / folder / room).is_dir()], [])
            for test in sorted((ROOT / "tests" / folder).rglob("*_test.cpp")):
                room = str(test.parent.relative_to(ROOT / "tests" / folder))
                with self.subTest(test=str(test.relative_to(ROOT))):
                    # A folder with a CMakeLists.txt has its own executables.
                    self.assertTrue(room in rooms or (room != "." and (test.parent / "CMakeLists.txt").is_file()),
                                    f"add_folder_tests({folder}) in tests/CMakeLists.txt has no room {room}")

    def test_no_source_file_is_too_long(self):
        long = {str(p.relative_to(ROOT)): n for p in sources() if (n := len(p.read_text().splitlines())) > MAX_LINES}
        self.assertEqual(long, {})

    def test_tables_are_the_only_places_that_list_their_rows(self):
        """Counts files that name operators, groups and ledger parts, and prints the counts."""
        texts = {str(p.relative_to(ROOT)): p.read_text() for p in sources()}
        words = {f: set(re.findall(r"\w+", text)) for f, text in texts.items()}
        operators = re.findall(r"^TRAINERD_OPERATOR\((\w+), (\w+),", (ROOT / "kernels/ops/operators.def").read_text(), re.M)
        self.assertGreater(len(operators), 30)
        places = {place: {} for place in [*PLACES_OF_AN_OPERATOR, "above kernels/"]}
        for name, args in operators:
            for f, named in words.items():
                place = ("kernels/cpu/" if f.startswith("kernels/cpu/") else "kernels/cuda/" if f.startswith("kernels/cuda/") else
                         "kernels/, outside of the worlds" if f.startswith("kernels/") else "above kernels/")
                if args in named or (name in named and name not in WORDS):
                    places[place].setdefault(name, []).append(f)
            places["kernels/, outside of the worlds"].setdefault(name, []).append("kernels/ops/operators.def")
        for place, files in places.items():
            counted = {name: found for name, found in files.items() if (place, name) not in EXEMPT_OPERATORS}
            most = max(counted, key=lambda name: len(counted[name]))
            print(f"\nfiles that name an operator, {place}: at most {len(counted[most])} ({most}: {', '.join(counted[most])})", end="")
            for (where, name), (count, why) in EXEMPT_OPERATORS.items():
                if where == place:
                    print(f"\n  exempt: {name}, {len(files[name])}: {why}", end="")
                    self.assertEqual(len(files[name]), count, (place, name, files[name]))
            if place in PLACES_OF_AN_OPERATOR:
                self.assertLessEqual(len(counted[most]), PLACES_OF_AN_OPERATOR[place], (place, most))
        groups = [f for f, text in texts.items() if re.search(r"\bGroup::(tp|kv|dp|dp_inner|dp_outer|pp|tied|from_host|to_host|world)\b", text)]
        strings = {f: n for f, text in texts.items() if (n := len(re.findall(r'"(?:tp|kv|dp|dp_inner|dp_outer|pp|tied|from_host|to_host|world)"', text)))}
        lists = [f for f, text in texts.items() if all(f"LedgerPart::{part}" in text for part in ("compute", "bubble", "data_wait", "other"))]
        print(f"\nfiles that name a group by its enum: {len(groups)} ({', '.join(groups)})\n"
              "files that have a group's name as text: " + ", ".join(f"{f} {strings.get(f)} ({why})" for f, (_, why) in GROUP_NAMES.items())
              + f"\nplaces that list the ledger's parts: {len(lists)} ({', '.join(lists)})")
        self.assertEqual(strings, {f: count for f, (count, _) in GROUP_NAMES.items()})
        self.assertEqual(lists, ["kernels/base/ledger.h"])

    def test_environment_variables_are_read_in_apps_alone(self):
        found = [str(p.relative_to(ROOT)) for p in sources() if room_of(p) != "apps" and re.search(r"\bgetenv\s*\(", p.read_text())]
        self.assertEqual(found, [])


if __name__ == "__main__":
    unittest.main()
