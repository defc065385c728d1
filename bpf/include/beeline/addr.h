/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Addresses: v4-mapped, and as two halves.
 */
#pragma once

#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include <beeline/types.h>

/*
 * The lower half of a v4-mapped address: 00 00 ff ff and the IPv4 address; that address; and
 * two words as they lie in memory one after the other.
 */
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define BL_MAPPED(ip4) ((__u64)(ip4) << 32 | 0xffff0000U)
#define BL_MAPPED_IPV4(low) ((__be32)((low) >> 32))
#define BL_JOINED(first, second) ((__u64)(second) << 32 | (first))
#define BL_IS_MAPPED(low) ((__u32)(low) == 0xffff0000U)
#else
#define BL_MAPPED(ip4) (0xffffULL << 32 | (ip4))
#define BL_MAPPED_IPV4(low) ((__be32)(low))
#define BL_JOINED(first, second) ((__u64)(first) << 32 | (second))
#define BL_IS_MAPPED(low) ((low) >> 32 == 0xffff)
#endif

/* Both are BL_ALIGNED. */
static __always_inline bool bl_addr_equal(const union bl_addr *a, const union bl_addr *b)
{
	return ((const __u64 *)a)[1] == ((const __u64 *)b)[1] &&
	       ((const __u64 *)a)[0] == ((const __u64 *)b)[0];
}

/* Whether @addr, which is BL_ALIGNED, is of IPv4. */
static __always_inline bool bl_addr_is_ipv4(const union bl_addr *addr)
{
	return !((const __u64 *)addr)[0] && BL_IS_MAPPED(((const __u64 *)addr)[1]);
}

/* Whether @addr is in fe80::/10. */
static __always_inline bool bl_addr_is_ipv6_link_local(const union bl_addr *addr)
{
	return bpf_ntohl(addr->word[0]) >> 22 == 0xfe80 >> 6;
}

/*
 * Whether no other host has the address: it is unspecified, of loopback scope, a multicast address,
 * or the broadcast one. The stack drops packets that come from there (martians).
 */
static __always_inline bool bl_addr_is_martian(const union bl_addr *addr)
{
	__u32 first = bpf_ntohl(addr->word[0]);

	if (bl_addr_is_ipv4(addr)) {
		first = bpf_ntohl(addr->word[3]);
		return first >> 24 == 0 || first >> 24 == 127 || first >> 28 == 0xe || first == ~0U;
	}
	return first >> 24 == 0xff ||
	       (!((const __u64 *)addr)[0] && bpf_ntohl(addr->word[3]) <= 1 && !addr->word[2]);
}

/* Whether an address means nothing beyond a link or a host, or is none of a host. */
static __always_inline bool bl_addr_is_scoped(const union bl_addr *addr)
{
	if (bl_addr_is_martian(addr))
		return true;
	return bl_addr_is_ipv4(addr) ? bpf_ntohl(addr->word[3]) >> 16 == 0xa9fe
				     : bl_addr_is_ipv6_link_local(addr);
}

static __always_inline void bl_addr_set_ipv4(union bl_addr *addr, __be32 ip4)
{
	addr->word[0] = 0;
	addr->word[1] = 0;
	addr->word[2] = bpf_htonl(0xffff);
	addr->word[3] = ip4;
}

/*
 * Fill what finds the socket that packets from @src to @dst are for. Returns how much of
 * @tuple is in use, as the kernel tells the families apart.
 */
static __always_inline __u32 bl_sock_tuple(bool ipv4, const union bl_addr *src, __be16 src_port,
					   const union bl_addr *dst, __be16 dst_port,
					   struct bpf_sock_tuple *tuple)
{
	if (ipv4) {
		tuple->ipv4.saddr = src->word[3];
		tuple->ipv4.daddr = dst->word[3];
		tuple->ipv4.sport = src_port;
		tuple->ipv4.dport = dst_port;
		return sizeof(tuple->ipv4);
	}
	__builtin_memcpy(tuple->ipv6.saddr, src, sizeof(tuple->ipv6.saddr));
	__builtin_memcpy(tuple->ipv6.daddr, dst, sizeof(tuple->ipv6.daddr));
	tuple->ipv6.sport = src_port;
	tuple->ipv6.dport = dst_port;
	return sizeof(tuple->ipv6);
}
