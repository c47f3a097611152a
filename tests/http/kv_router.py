"""A router that knows from KV events which prefixes a replica has: what test_kv_events.py subscribes with.

Batches are decoded as consumers of vLLM's events do it, by the types of vllm/distributed/kv_events.py: arrays as of v0.15, maps
as of v0.24. Requests for earlier batches go to the replay socket in the form of vLLM's."""
import msgspec
import zmq

PAGE = 16
PATIENCE = 300
END = (1 << 64) - 1  # -1, of eight bytes


def event_types(arrays):
    class Event(msgspec.Struct, array_like=arrays, omit_defaults=True, tag=True):
        pass

    class BlockStored(Event):
        block_hashes: list[int]
        parent_block_hash: int | None
        token_ids: list[int]
        block_size: int
        lora_id: int | None
        medium: str | None
        lora_name: str | None

    class BlockRemoved(Event):
        block_hashes: list[int]
        medium: str | None

    class AllBlocksCleared(Event):
        pass

    class Batch(msgspec.Struct, array_like=True, omit_defaults=True):
        ts: float
        events: list[BlockStored | BlockRemoved | AllBlocksCleared]
        data_parallel_rank: int | None = None

    return msgspec.msgpack.Decoder(Batch)


DECODERS = {"array": event_types(True), "map": event_types(False)}


class Router:
    """events, replay: endpoints. topic: the begin of those that it hears. hwm: messages that it lets wait. listens: the replica
    connects to it."""

    def __init__(self, events, replay=None, topic="", form="array", hwm=0, listens=False):
        self.context = zmq.Context()
        self.sub = self.context.socket(zmq.SUB)
        self.sub.setsockopt(zmq.RCVHWM, hwm)
        self.sub.setsockopt_string(zmq.SUBSCRIBE, topic)
        self.sub.setsockopt(zmq.IPV6, "[" in events)
        (self.sub.bind if listens else self.sub.connect)(events)
        self.replay = None
        if replay:
            self.replay = self.context.socket(zmq.DEALER)
            self.replay.setsockopt(zmq.IPV6, "[" in replay)
            self.replay.connect(replay)
        self.decoder = DECODERS[form]
        self.next = 0  # the batch that comes next
        self.newest = 0  # when the last one was made
        self.passes_over_cleared = False
        self.skipped = 0  # times that the subscription left batches out
        self.gaps, self.lost = 0, False  # lost: batches were missed that are no longer kept, so nothing is known until all is told
        self.blocks = {}  # hash: (parent, tokens, adapter)
        self.batches, self.topics, self.kinds, self.largest = [], set(), [], 0

    def close(self):
        self.context.destroy(linger=0)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    # ---- batches ----

    def apply(self, sequence, payload):
        batch = self.decoder.decode(payload)
        assert isinstance(msgspec.msgpack.decode(payload), list) and batch.data_parallel_rank == 0 and batch.ts > 1e9
        for event in batch.events:
            self.lost &= type(event).__name__ != "AllBlocksCleared"
            if not self.lost:
                getattr(self, "_" + type(event).__name__)(event)
        self.batches.append(sequence)
        self.next, self.newest = sequence + 1, batch.ts

    def _BlockStored(self, e):
        assert e.block_size == PAGE and len(e.token_ids) == PAGE * len(e.block_hashes)
        assert (e.lora_id is None) == (e.lora_name is None)
        parent = e.parent_block_hash
        for i, block in enumerate(e.block_hashes):
            assert block not in self.blocks, "told twice"
            assert parent is None or parent in self.blocks, "behind one that is not there"
            self.blocks[block] = parent, tuple(e.token_ids[i * PAGE:(i + 1) * PAGE]), e.lora_name
            parent = block
        self.kinds.append("stored")
        self.largest = max(self.largest, len(e.block_hashes))

    def _BlockRemoved(self, e):
        for block in e.block_hashes:
            del self.blocks[block]
        self.kinds.append("removed")

    def _AllBlocksCleared(self, e):
        if not self.passes_over_cleared:
            self.blocks.clear()
        self.kinds.append("cleared")

    def hear(self, wait=0):
        """Takes what the subscription has.  wait: for the first, so many milliseconds.  @return how many."""
        n = 0
        while self.sub.poll(wait if not n else 0):
            topic, number, payload = self.sub.recv_multipart()
            sequence = int.from_bytes(number, "big")
            assert len(number) == 8
            self.topics.add(topic.decode())
            n += 1
            if sequence < self.next and self.decoder.decode(payload).ts <= self.newest:
                continue  # it was in an answer already
            if sequence < self.next:  # of another process: nothing is known
                self.blocks.clear()
                self.batches.clear()
                self.next = 0
            self.skipped += sequence > self.next
            if sequence > self.next and self.replay:
                self.ask()
            elif sequence > self.next:
                self.miss()
            if sequence >= self.next:
                self.apply(sequence, payload)
        return n

    def earlier(self, first):
        """Asks for the batches from this one on -> [(number, payload, ...)], as vLLM's subscribers do."""
        self.replay.send_multipart([b"", first.to_bytes(8, "big")])
        got = []
        while True:
            assert self.replay.poll(1000 * PATIENCE), "no answer"
            empty, number, payload, *more = self.replay.recv_multipart()
            assert empty == b""
            if int.from_bytes(number, "big") == END:
                assert payload == b""
                return got
            got.append((int.from_bytes(number, "big"), payload, *more))

    def ask(self):
        """All that was published up to now."""
        for sequence, payload, *_ in self.earlier(self.next):
            if sequence != self.next:
                self.miss()
            self.apply(sequence, payload)

    def miss(self):
        self.gaps += 1
        self.lost = True
        self.blocks.clear()

    def catch_up(self):
        """An answer to a request came after its batches were posted: with them, what is known is what is cached."""
        self.ask()
        self.hear()

    # ---- what it knows ----

    def pages(self, tokens, adapter=None):
        """How many pages of the text are cached."""
        known = {(parent, text, name): block for block, (parent, text, name) in self.blocks.items()}
        parent, n = None, 0
        while (found := known.get((parent, tuple(tokens[n * PAGE:(n + 1) * PAGE]), adapter))) is not None:
            parent, n = found, n + 1
        return n

    def hits(self, tokens, adapter=None):
        """The tokens of a prompt that a request would find: never its last one, whose logits it needs."""
        return PAGE * min(self.pages(tokens, adapter), (len(tokens) - 1) // PAGE)

