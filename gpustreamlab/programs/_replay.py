"""A program as one CUDA graph: captured once with its streams, launched with one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpustreamlab._util.arrays import find_arrays
from gpustreamlab.analysis._scale import count_text
from gpustreamlab.backends import BackendGraph, BackendStream
from gpustreamlab.errors import GraphCaptureError, ProgramError
from gpustreamlab.programs._code import Code, Statements, probed
from gpustreamlab.programs._record import needed_names, rebound

__all__ = ["Replay"]

_PROBE = "__gpustreamlab_node__"


class Replay:
    """A program that was captured into one CUDA graph. Made by `Plan.capture`.

    Its results are the same arrays after each launch, computed anew; inputs are read where they were as it was captured: change
    their values in place. Statements of the host alone ran once, as it was captured.

    Parameters
    ----------
    program
        The program.
    code
        What is captured; without ranges.
    home
        The stream in which it begins and ends.
    values
        The variables that it is captured on; it binds its results in a copy.
    """

    def __init__(self, program: Statements, code: Code, home: str, values: Mapping[str, Any]) -> None:
        self._program = program
        self._code = code
        self._home = home
        self._values = rebound(values)
        given = [array for name in needed_names(program.source, values) for array in find_arrays(values[name])]
        self._graph = self._capture(given)

    def __repr__(self) -> str:
        count = count_text(len(self._program.source.statements), "statement")
        return f"<Replay: {count}, {count_text(self.node_count, 'kernel, copy or fill', 'kernels, copies and fills')}>"

    @property
    def code(self) -> str:
        """The Python that was captured."""
        return self._code.text

    @property
    def node_count(self) -> int:
        """Kernels, copies and fills that one launch runs."""
        return self._graph.node_count

    @property
    def results(self) -> dict[str, Any]:
        """The variables that the program binds; their arrays hold what the last launch computes."""
        names = dict.fromkeys(name for one in self._program.source.statements for name in sorted(one.writes))
        return {name: self._values[name] for name in names if name in self._values}

    def launch(self) -> dict[str, Any]:
        """Launch it in its stream, with one call; return its `results`. Nothing waits for the device."""
        with self._program.lab.on(self._home, "replay"):
            self._graph.launch(self._place)
        return self.results

    def close(self) -> None:
        """Let go of the graph and of the memory of its results. Idempotent."""
        self._graph.close()
        self._values.clear()

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def _place(self) -> BackendStream:
        return self._program.lab._table.choose(self._home)._backend_stream

    def _capture(self, given: Sequence[Any]) -> BackendGraph:
        """Run the program while its streams are captured, and make the graph; `given` are the arrays of its inputs."""
        __tracebackhide__ = True
        program = self._program
        labels: list[tuple[int, str]] = []
        line = [program.source.statements[0].line]
        capture = program.backend.begin_graph(self._place, given)

        def note(number: int) -> None:
            count = capture.node_count
            one = program.source.statements[number]
            if count > (labels[-1][0] if labels else 0):
                labels.append((count, one.label))
            following = program.source.statements[number + 1 : number + 2]
            line[0] = following[0].line if following else one.line

        try:
            program.execute(probed(self._code, program.source, _PROBE), self._values, {_PROBE: note})
        except Exception as error:
            capture.abandon()
            known_error = program.backend.map_error(error, "Capturing it")
            if isinstance(known_error, GraphCaptureError):
                why = f"The program cannot be replayed as a CUDA graph, for line {line[0]}: {known_error}"
                raise ProgramError(why) from error
            raise
        except BaseException:
            capture.abandon()
            raise
        graph = capture.instantiate()
        firsts = [0, *(count for count, _ in labels[:-1])]
        program.lab._recorder.name_graph(graph.id, [(first, label) for first, (_, label) in zip(firsts, labels, strict=True)])
        return graph
