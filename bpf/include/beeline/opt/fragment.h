/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Fragments. Only the first one of a datagram has the ports, so what becomes of it
 * is kept for the others.
 */
#pragma once

#include <beeline/packet.h>

enum bl_fragment_limits {
	BL_FRAGMENT_ENTRIES = 4096, /* datagrams */
	BL_FRAGMENT_SECONDS = 30, /* how long Linux waits for all fragments of IPv4 */
};

/* What the fragments of one datagram have in common at one hook. */
struct bl_fragment_key {
	union bl_addr src;
	union bl_addr dst;
	__be32 id;
	__u8 proto; /* 0 with IPv6, where the id stands alone */
	__u8 hook;
	__u8 pad[2];
} BL_ALIGNED;
_Static_assert(sizeof(struct bl_fragment_key) == 40, "bl_fragment_key");

/* What became of the first fragment; BL_VERDICT_UNKNOWN while others wait for it. */
struct bl_fragment_entry {
	struct bl_rewrite to;
	__u32 device;
	__u32 second; /* as bl_flow_now() */
	__u8 verdict;
	__u8 back;
	__u8 tunnel;
	__u8 reply;
	__u8 pad[4];
};
_Static_assert(sizeof(struct bl_fragment_entry) == 56, "bl_fragment_entry");

/* It is worth nothing after a moment, so each load of the programs has its own. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, BL_FRAGMENT_ENTRIES);
	__type(key, struct bl_fragment_key);
	__type(value, struct bl_fragment_entry);
} bl_fragment SEC(".maps");

/* The record of a datagram whose first fragment has yet to come. */
static const struct bl_fragment_entry bl_fragment_waits = {.verdict = BL_VERDICT_UNKNOWN};

/* Have the record say that others wait for the first fragment, unless there is one. */
static __always_inline void bl_fragment_wait(const struct bl_fragment_key *key)
{
	bpf_map_update_elem(&bl_fragment, key, &bl_fragment_waits, BPF_NOEXIST);
}

static __always_inline void bl_fragment_store(const struct bl_fragment_key *key,
					      const struct bl_fragment_entry *entry)
{
	bpf_map_update_elem(&bl_fragment, key, entry, BPF_ANY);
}

static __always_inline void bl_fragment_forget(const struct bl_fragment_key *key)
{
	bpf_map_delete_elem(&bl_fragment, key);
}

static __always_inline void bl_fragment_key(const struct bl_packet *packet, __u8 hook,
					    struct bl_fragment_key *key)
{
	key->src = packet->key.src;
	key->dst = packet->key.dst;
	key->id = packet->fragment_id;
	key->proto = packet->ipv4 ? packet->key.proto : 0;
	key->hook = hook;
	__builtin_memset(key->pad, 0, sizeof(key->pad));
}

/* Whether two keys are the same. */
static __always_inline bool bl_fragment_same(const struct bl_fragment_key *a,
					     const struct bl_fragment_key *b)
{
	const __u64 *x = (const __u64 *)a, *y = (const __u64 *)b;
	__u64 differs = 0;

	for (unsigned int i = 0; i < sizeof(*a) / sizeof(*x); i++)
		differs |= x[i] ^ y[i];
	return !differs;
}
