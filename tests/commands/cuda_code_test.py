"""The machine code of the kernels, as ptxas has made it: registers, local memory, tensor cores, wide loads, and the loop of
flash attention. An instruction takes 16 bytes, and its operation is in the lowest 12 bits."""
import collections
import heapq
import os
import pathlib
import re
import struct
import unittest

STANDIN = os.environ.get("CAMBIUM_CUDA_STANDIN")  # BUILD/tests/cuda/lib, in a build with CUDA
HMMA, LDGSTS, LDG, LDL, STL, BRA, EXIT = 0x23c, 0xfae, 0x981, 0x983, 0x387, 0x947, 0x94d
VIMNMX = {0x248, 0x848, 0xc48}
DOUBLES = {0x228, 0x229, 0x22a, 0x22b}  # DMUL, DADD, DSETP, DFMA
IN_DOUBLE = re.compile("clip_factor|cross_entropy_join|reduce$|sum_of_squares|sum_to_one")
COPIED = re.compile("attention_.*tiles_|(few|encoded)_rows_")
TENSOR_CORES = re.compile("(paged_)?attention_.*tiles_|attention_forward_pages_[126]|grouped_gemm_bf16|(few|encoded)_rows_")
STREAMS = re.compile("(adamw|add|gelu_forward|gelu_backward|norm_(few_forward|(narrow_|wide_|)(forward|backward))|residual_dropout|"
                     "swiglu_forward|swiglu_backward|unit_forward)_(fp32|bf16)")
# Flash attention's forward by size of heads: blocks at a time on a multiprocessor of sm_80, and instructions for each
# product in the loop's shortest way through all products of a tile and the copies of the next.
BARS = {64: (3, 6.5), 128: (2, 4.3)}
KEYS, THREADS = 64, 128  # of a tile, and of a block


def entries(image):
    """The machine code in a fat binary: pairs of an architecture and an ELF file."""
    _, _, at, size = struct.unpack_from("<IHHQ", image)
    end = at + size
    while at < end:
        kind, _, header, size, _, _, _, architecture = struct.unpack_from("<HHIQIIII", image, at)
        if kind == 2:
            yield architecture, image[at + header:at + header + size]
        at += header + size


class Kernel:
    def __init__(self, architecture, name, registers, code):
        self.architecture, self.name, self.registers = architecture, name, registers
        self.code = [struct.unpack_from("<QQ", code, at) for at in range(0, len(code), 16)]
        self.counts = collections.Counter(low & 0xfff for low, _ in self.code)

    def products_in_tf32(self):
        return sum(low & 0xfff == HMMA and high >> 19 & 1 for low, high in self.code)

    def wide_loads(self):
        return sum(low & 0xfff == LDG and high >> 9 & 7 == 6 for low, high in self.code)

    def compares_while_it_bounds(self):
        """A minimum or maximum that has a predicate, too."""
        return any(low & 0xfff in VIMNMX and high >> 17 & 7 != 7 for low, high in self.code)

    def blocks(self):
        """Runs of instructions without a branch: the place of each, and its length, products, copies and successors."""
        starts, branches = {0}, {}
        for i, (low, high) in enumerate(self.code):
            is_conditional = low >> 12 & 15 != 7 or (low & 0xfff == BRA and high >> 23 & 15 != 7)
            if low & 0xfff in (BRA, EXIT):
                offset = struct.unpack("<i", struct.pack("<I", low >> 32))[0] // 16
                to = [i + 1 + offset] if low & 0xfff == BRA else []
                branches[i] = to + [i + 1] * is_conditional
                starts.update(branches[i] + [i + 1])
        order = sorted(start for start in starts if start < len(self.code)) + [len(self.code)]
        result = {}
        for start, end in zip(order, order[1:]):
            operations = [low & 0xfff for low, _ in self.code[start:end]]
            next_ones = branches.get(end - 1, [end])
            result[start] = (end - start, operations.count(HMMA), operations.count(LDGSTS),
                             [to for to in next_ones if to < len(self.code)])
        return result

    def shortest_turn(self, products, copies):
        """Instructions of the shortest way around the outermost loop with these numbers of products and copies."""
        blocks = self.blocks()
        head = max(((self.products_between(to, start + length), start + length - to), -to)
                   for start, (length, _, _, nexts) in blocks.items() for to in nexts if to <= start)
        head = -head[1]
        queue, seen = [(0, head, 0, 0)], set()
        while queue:
            cost, at, done, copied = heapq.heappop(queue)
            if (at, done, copied) in seen:
                continue
            seen.add((at, done, copied))
            length, more, more_copies, nexts = blocks[at]
            done, copied = done + more, min(copied + more_copies, copies)
            if head in nexts and (done, copied) == (products, copies):
                return cost + length
            for to in nexts:
                if to > head and done <= products:
                    heapq.heappush(queue, (cost + length, to, done, copied))
        raise AssertionError(f"{self.name}: no such loop")

    def products_between(self, first, end):
        return sum(low & 0xfff == HMMA for low, _ in self.code[first:end])


def kernels_of(path):
    for architecture, elf in entries(path.read_bytes()):
        table, = struct.unpack_from("<Q", elf, 40)
        size, count, names = struct.unpack_from("<HHH", elf, 58)
        sections = [struct.unpack_from("<IIQQQQII", elf, table + i * size) for i in range(count)]
        for name, _, _, _, offset, length, _, info in sections:
            start = sections[names][4] + name
            text = elf[start:elf.index(b"\0", start)].decode()
            if text.startswith(".text."):
                yield Kernel(architecture, text[6:], info >> 24, elf[offset:offset + length])


class Code(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not STANDIN:
            raise unittest.SkipTest("this build has no CUDA")
        paths = sorted((pathlib.Path(STANDIN).parents[2] / "kernels/cuda").glob("*.fatbin"))
        cls.kernels = [kernel for path in paths for kernel in kernels_of(path)]
        if not cls.kernels:
            raise unittest.SkipTest("a build with a sanitizer makes no machine code")

    def names(self, is_so):
        return {f"{kernel.name} on {kernel.architecture}" for kernel in self.kernels if is_so(kernel)}

    def test_no_kernel_uses_local_memory(self):
        self.assertGreater(len(self.kernels), 300)
        self.assertEqual(self.names(lambda kernel: kernel.counts[LDL] or kernel.counts[STL]), set())

    def test_double_precision_is_for_sums_alone(self):
        self.assertEqual(self.names(lambda kernel: any(kernel.counts[one] for one in DOUBLES)),
                         self.names(lambda kernel: IN_DOUBLE.match(kernel.name)))

    def test_attention_and_grouped_products_use_tensor_cores(self):
        self.assertEqual(self.names(lambda kernel: kernel.counts[HMMA] > 0),
                         self.names(lambda kernel: TENSOR_CORES.match(kernel.name)))

    def test_attention_in_tf32_multiplies_in_tf32_alone(self):
        tiles = self.names(lambda kernel: re.match("attention_.*_tf32_tiles_", kernel.name))
        self.assertEqual(len(tiles), 3 * 6)
        self.assertEqual(self.names(lambda kernel: kernel.products_in_tf32() > 0), tiles)
        self.assertEqual(self.names(lambda kernel: kernel.counts[HMMA] == kernel.products_in_tf32() > 0), tiles)

    def test_tiles_of_flash_attention_and_weights_of_few_rows_are_copied_in_the_background(self):
        self.assertEqual(self.names(lambda kernel: kernel.counts[LDGSTS] > 0),
                         self.names(lambda kernel: COPIED.match(kernel.name)))

    def test_nothing_is_compared_by_a_minimum(self):
        """An H200 computed other bits of dropout where ptxas 13.0 had made one instruction of a minimum of a number and
        of a comparison of that minimum."""
        self.assertEqual(self.names(lambda kernel: kernel.architecture == 90 and kernel.compares_while_it_bounds()), set())

    def test_streams_are_read_16_bytes_at_a_time(self):
        streams = self.names(lambda kernel: STREAMS.match(kernel.name))
        self.assertEqual(len(streams), 3 * 30)
        self.assertEqual(self.names(lambda kernel: STREAMS.match(kernel.name) and not kernel.wide_loads()), set())

    def test_the_loop_of_flash_attention(self):
        for size, (blocks, most) in BARS.items():
            kernel, = (one for one in self.kernels if (one.architecture, one.name) == (80, f"attention_forward_tiles_{size}"))
            warp_registers = (kernel.registers + 7) // 8 * 8 * 32  # a warp takes them in units of 256
            shared = (64 + 4 * KEYS) * size * 2 + 1024  # with what the driver takes of each block
            found = min(65536 // (warp_registers * THREADS // 32), (164 << 10) // shared)
            products = KEYS // 8 * (size // 16) + KEYS // 16 * (size // 8)
            turn = kernel.shortest_turn(products, 2 * KEYS * size * 2 // 16 // THREADS)
            print(f"flash attention, heads of {size}: {kernel.registers} registers, {found} blocks on a multiprocessor, "
                  f"{turn / products:.2f} instructions for each product")
            self.assertGreaterEqual(found, blocks)
            self.assertLessEqual(turn / products, most)


if __name__ == "__main__":
    unittest.main()
