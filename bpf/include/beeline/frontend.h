/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The tables of destinations: which are a Service's, and which must not be reached.
 */
#pragma once

#include <beeline/addr.h>
#include <beeline/maps.h>

/*
 * The destination of a system call or a packet. The address is held as its two
 * halves in memory order: two registers, where four words would go through memory
 * and stall when they are read in other sizes than they were written.
 */
struct bl_dst {
	__u64 high;
	__u64 low;
	union {
		struct {
			__be16 port;
			__u8 proto;
			__u8 pad;
		};
		__u32 tail; /* of a frontend's key */
	};
	bool ipv4;
};

union bl_frontend_word {
	struct bl_frontend_entry frontend;
	__u64 word;
};

/* Write the address of @dst to @addr, which is BL_ALIGNED. */
static __always_inline void bl_dst_get_addr(const struct bl_dst *dst, union bl_addr *addr)
{
	((__u64 *)addr)[0] = dst->high;
	((__u64 *)addr)[1] = dst->low;
}

/* Whether @addr, which is BL_ALIGNED, is the address of @dst. */
static __always_inline bool bl_dst_has_addr(const struct bl_dst *dst, const union bl_addr *addr)
{
	return ((const __u64 *)addr)[1] == dst->low && ((const __u64 *)addr)[0] == dst->high;
}

/* A hash of a frontend's key, good in its upper half. The agent computes the same. */
static __always_inline __u64 bl_frontend_hash(__u64 high, __u64 low, __u32 tail)
{
	__u64 mixed = (low + tail * 0x94d049bb133111ebULL) ^ high * 0xbf58476d1ce4e5b9ULL;

	return mixed * 0x9e3779b97f4a7c15ULL;
}

/*
 * The digest of a key with this hash: the upper bits, which depend on the whole
 * key, and some that the filter does not use.
 */
static __always_inline __u16 bl_frontend_check(__u64 hash)
{
	return hash >> 48 ^ hash >> 25;
}

/* Whether there may be a frontend whose key has this hash. */
static __always_inline bool bl_filter_test(__u64 hash)
{
	__u32 bit = hash >> (64 - BL_FILTER_SHIFT);

	return bl_value(bl_filter)->word[bit >> 6] >> (bit & 63) & 1;
}

/* Whether there may be a Service of BL_ALGORITHM_MAGLEV. */
static __always_inline bool bl_filter_test_rings(void)
{
	const struct bl_dst rings = {.proto = BL_FILTER_RINGS};

	return bl_filter_test(bl_frontend_hash(0, 0, rings.tail));
}

/*
 * The frontend of exactly this address and, in @tail, port and protocol. Its kind
 * is BL_FRONTEND_NONE when there is none.
 */
static __always_inline struct bl_frontend_entry bl_frontend_get(__u64 high, __u64 low, __u32 tail)
{
	__u64 hash = bl_frontend_hash(high, low, tail);
	struct bl_frontend_key key BL_ALIGNED;
	union bl_frontend_word found = {};
	const __u64 *word;

	if (!bl_filter_test(hash))
		return found.frontend;
	((__u64 *)&key)[0] = high;
	((__u64 *)&key)[1] = low;
	*(__u32 *)&key.port = tail;
	word = bpf_map_lookup_elem(&bl_frontend, &key);
	if (!word)
		return found.frontend;
	found.word = *(const volatile __u64 *)word;
	if (found.frontend.check != bl_frontend_check(hash))
		found.word = 0;
	return found.frontend;
}

/*
 * Whether NodePorts are served at the address of @dst, seen from a client in the
 * network namespace @netns.
 */
static __always_inline bool bl_node_addr_serves(const struct bl_dst *dst, __u64 netns)
{
	union bl_addr addr BL_ALIGNED;
	const __u32 *flags;

	bl_dst_get_addr(dst, &addr);
	flags = bpf_map_lookup_elem(&bl_node_addr, &addr);
	if (!flags)
		return false;
	return !(*flags & BL_NODE_ADDR_HOST_ONLY) || netns == bl_host_netns;
}

/*
 * The NodePort that has the port of @dst. The caller checks that it answers at the
 * address.
 */
static __always_inline struct bl_frontend_entry bl_node_port_get(const struct bl_dst *dst)
{
	return bl_frontend_get(0, dst->ipv4 ? BL_MAPPED(0) : 0, dst->tail);
}

/*
 * The frontend that leads packets to where those of @key go, whether this node has the address or
 * another one.
 */
static __always_inline struct bl_frontend_entry bl_frontend_of(const struct bl_flow_key *key)
{
	struct bl_dst dst = {
		.high = ((const __u64 *)&key->dst)[0],
		.low = ((const __u64 *)&key->dst)[1],
		.port = key->dst_port,
		.proto = key->proto,
		.ipv4 = bl_addr_is_ipv4(&key->dst),
	};
	struct bl_frontend_entry frontend = bl_frontend_get(dst.high, dst.low, dst.tail);

	return frontend.kind == BL_FRONTEND_NONE ? bl_node_port_get(&dst) : frontend;
}

/*
 * The Service to which packets of @key are led now: @service, to which they have been, also when no
 * frontend leads them anywhere any more.
 */
static __always_inline __u32 bl_frontend_owner(const struct bl_flow_key *key, __u32 service)
{
	struct bl_frontend_entry frontend = bl_frontend_of(key);
	union bl_addr addr = key->dst; /* Linux 6.1 takes keys on the stack alone */

	if (frontend.kind == BL_FRONTEND_NODE_PORT && !bpf_map_lookup_elem(&bl_node_addr, &addr))
		return service;
	return frontend.kind == BL_FRONTEND_NONE ? service : frontend.service;
}

/* Whether @dst lies in a Service CIDR and is of no Service that another proxy serves. */
static __always_inline bool bl_service_cidr_has(const struct bl_dst *dst)
{
	const struct bl_aggregate_entry *aggregate = bl_value(bl_aggregate);
	struct bl_cidr_key key = {.prefix_len = 128};
	union bl_addr addr BL_ALIGNED;

	if (dst->ipv4) {
		if ((BL_MAPPED_IPV4(dst->low) & aggregate->mask4) != aggregate->addr4)
			return false;
	} else {
		const __u64 *mask = (const __u64 *)&aggregate->mask6;
		const __u64 *net = (const __u64 *)&aggregate->addr6;

		if ((dst->high & mask[0]) != net[0] || (dst->low & mask[1]) != net[1])
			return false;
	}
	bl_dst_get_addr(dst, &addr);
	key.addr = addr;
	return bpf_map_lookup_elem(&bl_service_cidr, &key) &&
	       !bpf_map_lookup_elem(&bl_foreign, &key);
}

/*
 * Why @dst, which is no frontend, must not be reached all the same:
 * BL_REASON_UNDECLARED_PORT, BL_REASON_UNALLOCATED_ADDRESS, or BL_REASON_COUNT
 * when there is nothing against it.
 */
static __always_inline enum bl_reason bl_undeclared(const struct bl_dst *dst)
{
	if (bl_frontend_get(dst->high, dst->low, 0).flags & BL_FRONTEND_REFUSE_OTHERS)
		return BL_REASON_UNDECLARED_PORT;
	if (bl_service_cidr_has(dst))
		return BL_REASON_UNALLOCATED_ADDRESS;
	return BL_REASON_COUNT;
}

/*
 * Whether @addr is a load-balancer IP of @service, at its port and protocol in @tail. Some clouds
 * give nodes that address, from which they then connect.
 */
static __always_inline bool bl_source_is_balancer(__u32 service, __u32 tail,
						  const union bl_addr *addr)
{
	const union bl_addr key BL_ALIGNED = *addr;
	struct bl_frontend_entry frontend =
		bl_frontend_get(((const __u64 *)&key)[0], ((const __u64 *)&key)[1], tail);

	return frontend.kind == BL_FRONTEND_LOAD_BALANCER && frontend.service == service;
}

/* Whether loadBalancerSourceRanges of @service let @addr in. */
static __always_inline bool bl_source_in_range(__u32 service, const union bl_addr *addr)
{
	struct bl_srcrange_key key = {
		.prefix_len = 32 + 128,
		.service = service,
		.addr = *addr,
	};

	return bpf_map_lookup_elem(&bl_srcrange, &key) != NULL;
}
