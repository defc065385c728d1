/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * From a destination to its frontend.
 */
#pragma once

#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <beeline/maps.h>

/* Where an application or a packet wants to go. */
struct bl_dst {
	union bl_addr addr;
	__be16 port;
	__u8 proto;
	bool ipv4;
};

union bl_frontend_word {
	struct bl_frontend_entry frontend;
	__u64 word;
};

static __always_inline bool bl_addr_equal(const union bl_addr *a, const union bl_addr *b)
{
	return a->word[3] == b->word[3] && a->word[2] == b->word[2] && a->word[1] == b->word[1] &&
	       a->word[0] == b->word[0];
}

static __always_inline void bl_addr_set_ipv4(union bl_addr *addr, __be32 ip4)
{
	addr->word[0] = 0;
	addr->word[1] = 0;
	addr->word[2] = bpf_htonl(0xffff);
	addr->word[3] = ip4;
}

/* True for the v4-mapped form. */
static __always_inline bool bl_addr_is_ipv4(const union bl_addr *addr)
{
	return !addr->word[0] && !addr->word[1] && addr->word[2] == bpf_htonl(0xffff);
}

/* A hash of @key, good in its upper half. The agent computes the same. */
static __always_inline __u64 bl_frontend_hash(const struct bl_frontend_key *key)
{
	const __u32 *word = (const __u32 *)key;
	__u64 low = (__u64)word[3] << 32 | word[4];
	__u64 high = ((__u64)word[0] << 32 | word[1]) + word[2];

	return (low ^ high * 0xbf58476d1ce4e5b9ULL) * 0x9e3779b97f4a7c15ULL;
}

/*
 * The digest of a key with this hash: the upper bits, which depend on the whole
 * key, and some that the filter does not use.
 */
static __always_inline __u16 bl_frontend_check(__u64 hash)
{
	return hash >> 48 ^ hash >> 28;
}

/* Whether there may be a frontend whose key has this hash. */
static __always_inline bool bl_filter_test(__u64 hash)
{
	__u32 bit = hash >> (64 - BL_FILTER_SHIFT);
	const struct bl_filter_entry *filter;
	__u32 zero = 0;

	filter = bpf_map_lookup_elem(&bl_filter, &zero);
	return filter && filter->word[bit >> 6] >> (bit & 63) & 1;
}

/*
 * The frontend of exactly @key. Its kind is BL_FRONTEND_NONE when there is none.
 */
static __always_inline struct bl_frontend_entry bl_frontend_get(const struct bl_frontend_key *key)
{
	__u64 hash = bl_frontend_hash(key);
	union bl_frontend_word found = {};
	const __u64 *word;

	if (!bl_filter_test(hash))
		return found.frontend;
	word = bpf_map_lookup_elem(&bl_frontend, key);
	if (!word)
		return found.frontend;
	found.word = *(const volatile __u64 *)word;
	if (found.frontend.check != bl_frontend_check(hash))
		found.word = 0;
	return found.frontend;
}

/*
 * Whether NodePorts are served at @addr, seen from a client in the
 * network namespace @netns.
 */
static __always_inline bool bl_node_addr_serves(union bl_addr addr, __u64 netns)
{
	const __u32 *flags = bpf_map_lookup_elem(&bl_node_addr, &addr);

	if (!flags)
		return false;
	return !(*flags & BL_NODE_ADDR_HOST_ONLY) || netns == bl_host_netns;
}

/*
 * The NodePort that has the port of @key, which is no frontend itself. Whether it
 * answers at the address is for the caller to see. @key is changed.
 */
static __always_inline struct bl_frontend_entry bl_node_port_get(const struct bl_dst *dst,
								 struct bl_frontend_key *key)
{
	key->addr.word[3] = 0;
	if (!dst->ipv4) {
		key->addr.word[0] = 0;
		key->addr.word[1] = 0;
		key->addr.word[2] = 0;
	}
	return bl_frontend_get(key);
}

/* Whether @dst lies in a Service CIDR. */
static __always_inline bool bl_service_cidr_has(const struct bl_dst *dst)
{
	struct bl_cidr_key key = {.prefix_len = 128, .addr = dst->addr};
	const struct bl_cover_entry *cover;
	__u32 zero = 0;

	cover = bpf_map_lookup_elem(&bl_cover, &zero);
	if (!cover)
		return false;
	if (dst->ipv4) {
		if ((dst->addr.word[3] & cover->mask4) != cover->addr4)
			return false;
	} else {
		for (int i = 0; i < 4; i++)
			if ((dst->addr.word[i] & cover->mask6.word[i]) != cover->addr6.word[i])
				return false;
	}
	return bpf_map_lookup_elem(&bl_service_cidr, &key) != NULL;
}

/*
 * Why @dst, which is no frontend, must not be reached all the same:
 * BL_REASON_UNDECLARED_PORT, BL_REASON_UNALLOCATED_ADDRESS, or BL_REASON_COUNT
 * when there is nothing against it.
 */
static __always_inline enum bl_reason bl_undeclared(const struct bl_dst *dst)
{
	struct bl_frontend_key any_port = {.addr = dst->addr};

	if (bl_frontend_get(&any_port).kind == BL_FRONTEND_ADDRESS)
		return BL_REASON_UNDECLARED_PORT;
	if (bl_service_cidr_has(dst))
		return BL_REASON_UNALLOCATED_ADDRESS;
	return BL_REASON_COUNT;
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
