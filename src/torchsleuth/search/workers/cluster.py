"""The same trials on a Ray cluster: `--workers ray` starts one here, `ray://host` joins the one at that address.

None is ever looked for: what RAY_ADDRESS or a file of Ray's names may be anybody's, and its nodes run what we send.

On each node one actor hosts the same isolated processes as on this machine, so a segfault never takes a Ray worker
down. A trial names files of the machine that asks: the store with its values, into which a recording is written, the
file for the steps of a compile, those of an analysis. No node is asked to have these paths: there they lie in a folder
that is the trial's own. Kept values travel with the first trial that needs them and stay with the node, and what a
trial writes comes back with its answer, so no shared folder is needed.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import queue
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torchsleuth
from torchsleuth.core.cases.door import NotRead, inside
from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.processes.limits import Limits
from torchsleuth.core.processes.prepared import PreparedInterpreter
from torchsleuth.core.protocol.codec import Document, from_json, to_json
from torchsleuth.core.protocol.files import write_whole
from torchsleuth.core.protocol.trials import Hello, Outcome, Question, Trial
from torchsleuth.search.workers.pool import Workers
from torchsleuth.search.workers.queue import Ticket, TrialQueue
from torchsleuth.search.workers.trial_log import settings_in

# For a node to unpack torchsleuth and to load torch from a cold disk.
READY_SECONDS = 300.0
# Where a head listens for clients unless it was told otherwise.
RAY_CLIENT_PORT = "10001"
JOINS = 3
# What a trial on a node came to, as messages have it, and the files that it wrote.
Ended = tuple[Document, Mapping[str, bytes]]


class ClusterUnfit(SleuthError):
    """The cluster cannot run these trials; the sentence says why and what to do."""


class Host:
    """What lives on a node: isolated workers, and the values that were sent there."""

    def __init__(self, count: int, settings: Mapping[str, str], options: Document) -> None:
        self.workers = Workers(count, environment={**os.environ, **settings}, **options)
        # Within the workers' own folder, which goes when they do, whatever ends this actor.
        self.folder = self.workers.folder / "values"
        (self.folder / "storages").mkdir(parents=True)
        self.tickets: dict[int, Ticket] = {}

    def hello(self) -> Hello:
        return self.workers.wait_ready(READY_SECONDS)

    def run(self, number: int, trial: Document, limits: Document, values: Document) -> Ended | None:
        """The outcome of one trial as a message, and the files it wrote; None where it was cancelled."""
        import ray

        with tempfile.TemporaryDirectory(dir=self.folder, ignore_cleanup_errors=True) as made:
            folder = Path(made)
            (folder / STORE / "storages").mkdir(parents=True)
            for digest, reference in values.items():
                path = self.folder / "storages" / f"{digest}.safetensors"
                if not path.exists():
                    write_whole(path, ray.get(reference))
                os.link(path, folder / STORE / "storages" / path.name)
            here = in_folder(from_json(Trial, trial), folder)
            ticket = self.workers.submit(here, limits=Limits.from_json(limits), fresh=True)
            self.tickets[number] = ticket
            try:
                return ticket.result().to_json(), files_in(folder, values)
            except BaseException:
                if ticket.cancelled():
                    return None
                raise
            finally:
                del self.tickets[number]

    def cancel(self, number: int) -> None:
        if number in self.tickets:
            self.tickets[number].cancel()

    def close(self) -> None:
        self.workers.close()


class RayWorkers(TrialQueue):
    """Workers on every node of a Ray cluster; used as `Workers` is. Without an `address` one is started here.

    Used as `with RayWorkers("ray://head:10001") as workers: workers.run(trial)`.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        folder: Path | None = None,
        limits: Limits | None = None,
        repeats: int = 1,
        per_node: int | None = None,
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        self._ray = ray_here()
        self._joined = not self._ray.is_initialized()
        if self._joined:
            join_cluster(self._ray, address)
        self._hosts = self._settle_in(per_node, settings_in(environment or os.environ), options)
        log = folder / "trials.jsonl" if folder is not None else None
        super().__init__(sum(self._hosts.values()), limits or Limits(), repeats, log)
        self._at: dict[int, Any] = {}
        self._values: dict[str, object] = {}
        self._arrived: queue.SimpleQueue[tuple[Ticket, Future[Ended]] | None] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, name="torchsleuth-cluster", daemon=True)
        self._listener.start()
        self._ready.set()

    @property
    def nodes(self) -> int:
        """On how many nodes trials run."""
        return len(self._hosts)

    def _settle_in(
        self, per_node: int | None, settings: Sequence[tuple[str, str]], options: Document
    ) -> dict[Any, int]:
        """One host per node, each with as many workers as the node has processors: {host: workers}."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        hosts: dict[Any, int] = {}
        for node in self._ray.nodes():
            count = per_node or int(node["Resources"].get("CPU", 0)) if node["Alive"] else 0
            if count:
                host = self._ray.remote(Host).options(
                    scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
                    num_cpus=min(count, int(node["Resources"].get("CPU", 0))),
                    max_concurrency=2 * count + 2,
                )
                hosts[host.remote(count, dict(settings), dict(options))] = count
        if not hosts:
            raise ClusterUnfit(
                "The Ray cluster has no node with a processor to spare; use --workers N instead."
            )
        try:
            self._check(self._ray.get([host.hello.remote() for host in hosts], timeout=READY_SECONDS))
        except self._ray.exceptions.RayError as error:
            why = str(error).strip().splitlines()[-1]
            raise ClusterUnfit(
                f"The Ray cluster could not start workers ({why}); use --workers N."
            ) from error
        return hosts

    def _check(self, hellos: list[Hello]) -> None:
        """Answers of another torch are answers to another question."""
        here = importlib.metadata.version("torch")
        others = {hello.facts.get("torch", here) for hello in hellos} - {here}
        if others:
            raise ClusterUnfit(
                f"The Ray cluster has torch {', '.join(sorted(others))} and this machine {here}: what fails here may "
                "pass there. Install the same torch on all nodes, or use --workers N."
            )

    def _begin(self, ticket: Ticket) -> None:
        host = min(self._hosts, key=lambda h: sum(at is h for at in self._at.values()) / self._hosts[h])
        self._at[ticket.number] = host
        values = {}
        for digest in storages_of(ticket.trial):
            if digest not in self._values:
                path = Path(ticket.trial.store or "", "storages", f"{digest}.safetensors")
                self._values[digest] = self._ray.put(path.read_bytes())
            values[digest] = self._values[digest]
        answer = host.run.remote(ticket.number, to_json(ticket.trial), ticket.limits.to_json(), values)
        # Ray calls back on the thread that carries its messages: whoever asks Ray for something there waits for ever.
        answer.future().add_done_callback(lambda future: self._arrived.put((ticket, future)))

    def _listen(self) -> None:
        while (arrived := self._arrived.get()) is not None:
            self._receive(*arrived)

    def _receive(self, ticket: Ticket, future: Future[Ended]) -> None:
        with self._lock:
            self._running.pop(ticket.number, None)
            host = self._at.pop(ticket.number, None)
            error = future.exception()
            if ticket.cancelled() or self._closed:
                pass
            elif error is not None:
                if isinstance(error, self._ray.exceptions.RayActorError) and len(self._hosts) > 1:
                    self.count -= self._hosts.pop(host, 0)  # its node is gone; the others go on
                self._try_again([ticket], f"the trial could not be run on the Ray cluster ({error})")
            else:
                self._conclude(ticket, _with_files(ticket.trial, *future.result()))
            self._dispatch()

    def _drop(self, ticket: Ticket) -> None:
        host = self._at.get(ticket.number)
        if host is not None:
            host.cancel.remote(ticket.number)

    def close(self) -> None:
        """Ends what runs on the nodes, and leaves the cluster where this object joined it."""
        super().close()
        self._arrived.put(None)
        # A node that is gone has taken its processes along.
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.get([host.close.remote() for host in self._hosts], timeout=30)
        for host in self._hosts:
            self._ray.kill(host)
        if self._joined:
            self._ray.shutdown()


def _with_files(trial: Trial, outcome: Document, files: Mapping[str, bytes]) -> Outcome:
    try:
        bring_back(trial, files)
    except (OSError, ValueError) as why:
        return Outcome(
            None, 0.0, error=f"what the trial wrote could not be brought back from the node ({why})"
        )
    return Outcome.from_json(outcome)


def ray_here() -> ModuleType:
    """Ray, or `ClusterUnfit` with what to install: `join_cluster(ray_here(), "ray://head:10001")`."""
    try:
        import ray
    except ImportError as error:
        raise ClusterUnfit(
            "`--workers ray` needs Ray, which is not installed here: pip install 'torchsleuth[ray]', "
            "or use --workers N."
        ) from error
    return ray


def join_cluster(ray: ModuleType, address: str | None) -> None:
    """Joins a cluster, or starts one here for None, and takes torchsleuth along, so that its nodes need torch only."""
    package = str(Path(torchsleuth.__file__).resolve().parent)
    options = {"runtime_env": {"py_modules": [package]}, "log_to_driver": False, "logging_level": "ERROR"}
    where = address or "this machine"
    if address is not None and address.startswith("ray://"):
        _require_listener(address)
    try:
        if address is None:
            ray.init(address="local", include_dashboard=False, **options)
        else:
            _join_patiently(ray, address, options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        why = (str(error).strip().splitlines() or ["no answer"])[-1]
        raise ClusterUnfit(f"No Ray cluster answers at {where} ({why}); use --workers N.") from error


def _join_patiently(ray: ModuleType, address: str, options: Document) -> None:
    """A head starts a process for each client and gives it 30 s, which a busy one does not always keep to."""
    for left in reversed(range(JOINS)):
        try:
            ray.init(address=address, **options)
            return
        except (ConnectionError, RuntimeError):
            ray.shutdown()
            if not left:
                raise


def _require_listener(address: str) -> None:
    """Ray waits half a minute for a port that nobody listens at; a plain connection knows at once."""
    host, _, port = address.removeprefix("ray://").partition("/")[0].rpartition(":")
    host, port = (host, port) if host else (port, RAY_CLIENT_PORT)
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        raise ClusterUnfit(
            f"Nothing listens at {address} ({error}); start the head with --ray-client-server-port or use --workers N."
        ) from error


def storages_of(trial: Trial) -> Iterator[str]:
    """The names of the kept values that a trial needs: `list(storages_of(trial))`."""
    if trial.store is None:
        return
    seen = set()
    for description in (trial.inputs, trial.constants.get("description") or {}):
        for spec in description.get("inputs", ()):
            digest = spec.get("storage")
            if digest and digest not in seen:
                seen.add(digest)
                yield digest


def open_workers(
    wanted: str | int = 1, prepared: PreparedInterpreter | None = None, **options: Any
) -> TrialQueue:
    """The workers that `--workers` names: a number of them here, `ray`, or `ray://host:port`.

    `prepared` is for workers here: an interpreter with torch loaded that their server can be forked from.

    >>> with open_workers("2") as workers: workers.count
    2
    """
    text = str(wanted)
    if text == "ray":
        return RayWorkers(None, **options)
    if text.startswith("ray://"):
        return RayWorkers(text, **options)
    if not text.isdecimal() or int(text) < 1:
        raise ClusterUnfit(
            f"--workers is {text!r}; it must be a number from 1 on, `ray`, or `ray://host:port`."
        )
    return Workers(int(text), prepared=prepared, **options)


# What a trial is given, and what it may write: the steps of its compile, what an analysis tells, and what it compared.
STORE, TRACE, TOLD, VALUES = "store", "trace", "told", "values"


def in_folder(trial: Trial, folder: Path) -> Trial:
    """The trial with every file that it names in a folder that is there.

    >>> from torchsleuth.script_runtime.signature import Signature
    >>> in_folder(Trial("", Signature("crash", "run"), store="/here/values"), Path("/there")).store
    '/there/store'
    """
    moved = {name: str(folder / name) for name in places_of(trial)}
    analysis = replace(trial.analysis, told=moved.get(TOLD), values=moved.get(VALUES))
    return replace(trial, store=moved.get(STORE, trial.store), trace=moved.get(TRACE), analysis=analysis)


def places_of(trial: Trial) -> dict[str, Path]:
    """Where the files of each kind belong on the machine that asks."""
    # What a whole program has there is its name.
    store = None if trial.question is Question.PROGRAM else trial.store
    named = {STORE: store, TRACE: trial.trace, TOLD: trial.analysis.told, VALUES: trial.analysis.values}
    return {name: Path(path) for name, path in named.items() if path is not None}


def files_in(folder: Path, known: Mapping[str, object]) -> dict[str, bytes]:
    """What a trial wrote into its folder, without the values that it was given."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.stem not in known)
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def bring_back(trial: Trial, files: Mapping[str, bytes]) -> None:
    """Puts what a trial wrote elsewhere where it would have written it here, and nowhere else."""
    places = places_of(trial)
    for name, data in files.items():
        kind, _, rest = name.partition("/")
        if kind not in places:
            raise NotRead(f"{name!r} is no file that the trial was to write")
        path = places[kind] / inside(rest) if rest else places[kind]
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, data)
