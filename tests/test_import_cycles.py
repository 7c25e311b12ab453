"""No module needs itself: imports go one way, inside rooms as well as between them (where import-linter holds them).

An import that stands inside a function counts like any other; one for type checkers alone does not run and does not.
"""

import graphlib

import grimp
import pytest


def test_no_module_imports_itself_through_others():
    graph = grimp.build_graph("torchsleuth", exclude_type_checking_imports=True, cache_dir=None)
    imported = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    try:
        graphlib.TopologicalSorter(imported).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" is imported by ".join(error.args[1]))
