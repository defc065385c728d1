/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * SCTP (RFC 9260). Its checksum is a CRC32c, which is linear: the effect of new ports on
 * it depends on the change and on the number of bytes that follow, not on their values.
 */
#pragma once

#include <linux/types.h>
#include <bpf/bpf_endian.h>

/* The Castagnoli polynomial, lowest power in the highest bit, as all below. */
#define BL_CRC32C_POLYNOMIAL 0x82f63b78U

enum bl_sctp_chunk {
	BL_SCTP_INIT = 1,
	BL_SCTP_INIT_ACK = 2,
	BL_SCTP_ABORT = 6,
	BL_SCTP_SHUTDOWN = 7,
	BL_SCTP_SHUTDOWN_ACK = 8,
	BL_SCTP_SHUTDOWN_COMPLETE = 14,
};

struct bl_sctp {
	__be16 src_port;
	__be16 dst_port;
	__be32 tag;
	__u32 checksum; /* lowest byte first */
};

/* Bit by bit of a length: x^(8 * 2^bit) modulo the polynomial. */
static const __u32 bl_crc32c_power[16] = {
	0x00800000, 0x00008000, 0x82f63b78, 0x6ea2d55c, 0x18b8ea18, 0x510ac59a,
	0xb82be955, 0xb8fdb1e7, 0x88e56f72, 0x74c360a4, 0xe4172b16, 0x0d65762a,
	0x35d73a62, 0x28461564, 0xbf455269, 0xe2ea32dc,
};

/* The product modulo the polynomial. Not static: see packet.h. */
__noinline __u32 bl_crc32c_multiply(__u32 a, __u32 b)
{
	__u32 product = 0;

	for (int i = 0; i < 32; i++) {
		product ^= b & -(a >> 31);
		a <<= 1;
		b = b >> 1 ^ (BL_CRC32C_POLYNOMIAL & -(b & 1));
	}
	return product;
}

/* Between the order of this machine and lowest byte first, either way. */
static __always_inline __u32 bl_sctp_swap(__u32 value)
{
	return __builtin_bswap32(bpf_ntohl(value));
}

/*
 * The value to XOR to the checksum of a packet of @len bytes when @change, as it stands
 * in memory, is XORed to its first four bytes.
 */
static __always_inline __u32 bl_sctp_checksum_change(__u32 change, __u16 len)
{
	__u32 sum = bl_sctp_swap(change);

	for (int bit = 0; bit < 16; bit++) {
		if (len >> bit & 1)
			sum = bl_crc32c_multiply(bl_crc32c_power[bit], sum);
	}
	return bl_sctp_swap(sum);
}
