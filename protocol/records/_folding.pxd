# CRC-32 by the processor's carry-less multiplication: what no Python says, and so the one piece of C, for `_converter`.
#
# Called from compiled loops only, without the interpreter's lock. Bits are polynomials over GF(2), the lowest bit of a
# byte the highest power. Sixteen bytes followed by n bits leave the same remainder as their two halves, each times a
# power of x, and these products of 128 bits are added to what lies n bits behind: so 64 bytes are folded onto the next
# 64 by four independent multiplications of each half. What is left are sixteen bytes, which stand for all that were
# folded: their CRC, begun at 0, is taken by tables, and whatever follows them continues it.
# The factors are x^(n+32) and x^(n-32) modulo the polynomial, reflected, for n = 512 and 128.
# Source: Gopal and others, "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel, 2009.

cdef extern from *:
    """
    #include <stdint.h>
    #if defined(__x86_64__) && defined(__GNUC__)
    #include <wmmintrin.h>

    __attribute__((target("pclmul")))
    static inline __m128i folded_onto(__m128i sixteen, __m128i factors, const unsigned char *behind) {
        __m128i low = _mm_clmulepi64_si128(sixteen, factors, 0x00);
        __m128i high = _mm_clmulepi64_si128(sixteen, factors, 0x11);
        return _mm_xor_si128(_mm_xor_si128(low, high), _mm_loadu_si128((const __m128i *)behind));
    }

    __attribute__((target("pclmul")))
    static Py_ssize_t fold(const unsigned char *data, Py_ssize_t size, uint32_t crc, unsigned char *left) {
        const __m128i over_64 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
        const __m128i over_16 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
        const unsigned char *at = data + 64, *end = data + size;
        unsigned char rest[48];
        __m128i a, b, c, d;
        if (size < 64 || !__builtin_cpu_supports("pclmul")) return 0;
        a = _mm_xor_si128(_mm_loadu_si128((const __m128i *)data), _mm_cvtsi32_si128((int)crc));
        b = _mm_loadu_si128((const __m128i *)(data + 16));
        c = _mm_loadu_si128((const __m128i *)(data + 32));
        d = _mm_loadu_si128((const __m128i *)(data + 48));
        for (; end - at >= 64; at += 64) {
            a = folded_onto(a, over_64, at);
            b = folded_onto(b, over_64, at + 16);
            c = folded_onto(c, over_64, at + 32);
            d = folded_onto(d, over_64, at + 48);
        }
        _mm_storeu_si128((__m128i *)rest, b);
        _mm_storeu_si128((__m128i *)(rest + 16), c);
        _mm_storeu_si128((__m128i *)(rest + 32), d);
        a = folded_onto(folded_onto(folded_onto(a, over_16, rest), over_16, rest + 16), over_16, rest + 32);
        for (; end - at >= 16; at += 16) a = folded_onto(a, over_16, at);
        _mm_storeu_si128((__m128i *)left, a);
        return at - data;
    }
    #else
    static Py_ssize_t fold(const unsigned char *data, Py_ssize_t size, uint32_t crc, unsigned char *left) {
        return 0;
    }
    #endif
    """
    # How many bytes were folded into the sixteen of `left`: 0 if they are too few, or the processor cannot.
    # crc: of what went before, as a register, not inverted.
    Py_ssize_t fold(const unsigned char *data, Py_ssize_t size, unsigned int crc, unsigned char *left) noexcept nogil
