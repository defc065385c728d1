/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Fragments that come before the first one of their datagram. Their verdict is not
 * known yet, so they are taken off the wire and kept for a moment. When the first one
 * comes they are put back behind it, at the same hook.
 *
 * Room is the same for every load of the programs: BL_REORDER_GROUPS times
 * BL_REORDER_GROUP fragments. One for which there is none passes untouched.
 */
#pragma once

#include <beeline/opt/fragment.h>
#include <beeline/peers.h>
#include <beeline/path.h>

enum bl_reorder_limits {
	BL_REORDER_GROUPS = 4,
	BL_REORDER_GROUP = 64, /* all of one datagram; 64 KiB in packets of 1,500 bytes are 45 */
	BL_REORDER_BYTES = 9216, /* of a fragment */
	BL_REORDER_MSEC = 200, /* how long one is kept */
};

/*
 * Who has the places of a group, a word each, which changes hands by compare and
 * swap: the low half is a digest of the datagram, above it are the milliseconds when
 * it was taken and a bit that says that the fragment is whole. 0 is free.
 */
struct bl_reorder_group {
	__u64 place[BL_REORDER_GROUP];
};

#define BL_REORDER_WHOLE (1ULL << 63)
#define BL_REORDER_TIME_MASK 0x7fffffffU

struct bl_reorder_fragment {
	struct bl_fragment_key key;
	__u32 len; /* of bytes, from the IP header on */
	__u32 pad;
	__u8 bytes[BL_REORDER_BYTES];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BL_REORDER_GROUPS);
	__type(key, __u32);
	__type(value, struct bl_reorder_group);
} bl_reorder SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BL_REORDER_GROUPS *BL_REORDER_GROUP);
	__type(key, __u32);
	__type(value, struct bl_reorder_fragment);
} bl_reorder_data SEC(".maps");

/*
 * Whether the fragment may be of a flow: only such ones are kept, for it is a delay
 * that no other packet is to have.
 */
static __always_inline bool bl_reorder_wanted(const struct bl_packet *packet)
{
	const __u64 *dst = (const __u64 *)&packet->key.dst;
	union bl_addr addr BL_ALIGNED = packet->key.dst;

	if (packet->key.proto != IPPROTO_UDP && packet->key.proto != IPPROTO_TCP)
		return false;
	return bl_frontend_get(dst[0], dst[1], 0).kind == BL_FRONTEND_ADDRESS ||
	       bpf_map_lookup_elem(&bl_node_addr, &addr) ||
	       bl_peers_has(&packet->key.src, &packet->key.dst);
}

static __always_inline __u64 bl_reorder_now(void)
{
	return bpf_ktime_get_coarse_ns() / 1000000 & BL_REORDER_TIME_MASK;
}

/* A hash of the datagram. */
static __always_inline __u64 bl_reorder_hash(const struct bl_fragment_key *key)
{
	const __u64 *word = (const __u64 *)key;
	__u64 mixed = 0;

	for (unsigned int i = 0; i < sizeof(*key) / sizeof(*word); i++)
		mixed = (mixed ^ word[i] ^ mixed >> 29) * 0x9e3779b97f4a7c15ULL;
	return mixed;
}

/* The first place of the datagram's group. */
static __always_inline __u32 bl_reorder_first(__u64 hash)
{
	return (hash >> 32 & (BL_REORDER_GROUPS - 1)) * BL_REORDER_GROUP;
}

static __always_inline bool bl_reorder_old(__u64 word, __u64 now)
{
	return ((now - (word >> 32)) & BL_REORDER_TIME_MASK) >= BL_REORDER_MSEC;
}

static __always_inline __u64 *bl_reorder_place(__u32 place)
{
	__u32 index = place / BL_REORDER_GROUP;
	struct bl_reorder_group *group = bpf_map_lookup_elem(&bl_reorder, &index);

	return group ? &group->place[place % BL_REORDER_GROUP] : NULL;
}

/* Take a place, if it is free, for @word. */
__noinline bool bl_reorder_try(__u32 place, __u64 word, __u64 now)
{
	__u64 *at = bl_reorder_place(place);
	__u64 was;

	if (!at)
		return false;
	was = *(volatile __u64 *)at;
	if (was && !bl_reorder_old(was, now))
		return false;
	return __sync_val_compare_and_swap(at, was, word) == was;
}

/* Take a free place of the group that begins at @first. What is none when there is none. */
static __always_inline __u32 bl_reorder_take(__u32 first, __u64 word, __u64 now)
{
	for (__u32 i = 0; i < BL_REORDER_GROUP; i++) {
		if (bl_reorder_try(first + i, word, now))
			return first + i;
	}
	return BL_REORDER_GROUPS * BL_REORDER_GROUP;
}

/*
 * The length of a fragment within what there is room for, in a way that the verifier of
 * Linux 6.1 follows. False when it is not.
 */
static __always_inline bool bl_reorder_bound(__u32 *len)
{
	__u32 last = *len - 1;

	barrier_var(last);
	if (last >= BL_REORDER_BYTES)
		return false;
	barrier_var(last);
	*len = last + 1;
	return true;
}

/* Copy the fragment to @to. */
static __always_inline bool bl_reorder_copy(struct __sk_buff *skb, const struct bl_packet *packet,
					    const struct bl_fragment_key *key,
					    struct bl_reorder_fragment *to)
{
	__u32 len = skb->len - packet->l3;

	if (!bl_reorder_bound(&len))
		return false;
	to->key = *key;
	to->len = len;
	return !bpf_skb_load_bytes(skb, packet->l3, to->bytes, len);
}

/*
 * Keep a fragment of the datagram @key, of which nothing is known. True when the
 * packet is to be dropped, for it is kept. False when it passes or, as the verdict in
 * bl_fragment then tells, when the first one has come meanwhile.
 */
__noinline bool bl_reorder_keep(struct __sk_buff *skb, const struct bl_packet *packet,
				const struct bl_fragment_key *key)
{
	struct bl_fragment_key datagram;
	struct bl_fragment_entry *entry;
	struct bl_reorder_fragment *fragment;
	__u64 now = bl_reorder_now();
	__u64 hash, word, *at;
	__u32 place;

	if (!packet || !key)
		return false;
	datagram = *key;
	hash = bl_reorder_hash(&datagram);
	word = (__u32)hash | now << 32;
	place = bl_reorder_take(bl_reorder_first(hash), word, now);
	fragment = bpf_map_lookup_elem(&bl_reorder_data, &place);
	at = bl_reorder_place(place);
	if (!fragment || !at) {
		bl_count(BL_REASON_FRAGMENT_NOT_KEPT);
		return false;
	}
	if (!bl_reorder_copy(skb, packet, &datagram, fragment)) {
		bl_count(BL_REASON_FRAGMENT_NOT_KEPT);
		*at = 0;
		return false;
	}
	bl_fragment_wait(&datagram);
	if (__sync_val_compare_and_swap(at, word, word | BL_REORDER_WHOLE) != word)
		return false;
	/*
	 * The CPU with the first fragment stores its verdict before it looks here, so one of
	 * the two sees the other.
	 */
	entry = bpf_map_lookup_elem(&bl_fragment, &datagram);
	if (entry && entry->verdict == BL_VERDICT_UNKNOWN)
		return true;
	word |= BL_REORDER_WHOLE;
	return __sync_val_compare_and_swap(at, word, 0) != word;
}

/* Put what @skb is where the packet of the datagram @key came. */
static __always_inline void bl_reorder_emit(struct __sk_buff *skb,
					    const struct bl_fragment_key *key)
{
	bpf_clone_redirect(skb, skb->ifindex, bl_hook_leaves(key->hook) ? 0 : BPF_F_INGRESS);
}

/*
 * Put the fragment that is kept at @place where it came, if it is of the datagram @key:
 * @skb is made it, which with @first is put there itself before.
 */
__noinline bool bl_reorder_put(struct __sk_buff *skb, __u32 l3, const struct bl_fragment_key *key,
			       __u32 place, bool first)
{
	struct bl_fragment_key datagram;
	struct bl_reorder_fragment *fragment;
	__u64 *at = bl_reorder_place(place), word;
	bool found = false;
	__u32 len;

	fragment = bpf_map_lookup_elem(&bl_reorder_data, &place);
	if (!key || !at || !fragment)
		return false;
	datagram = *key;
	word = *(volatile __u64 *)at;
	if (!(word & BL_REORDER_WHOLE) || (__u32)word != (__u32)bl_reorder_hash(&datagram) ||
	    bl_reorder_old(word, bl_reorder_now()))
		return false;
	/* No longer whole, and nobody else's for as long as it is not old. */
	if (__sync_val_compare_and_swap(at, word, word & ~BL_REORDER_WHOLE) != word)
		return false;
	len = fragment->len;
	if (bl_fragment_same(&fragment->key, &datagram) && bl_reorder_bound(&len)) {
		found = true;
		if (first)
			bl_reorder_emit(skb, &datagram);
		if (!bpf_skb_change_tail(skb, l3 + len, 0) &&
		    !bpf_skb_store_bytes(skb, l3, fragment->bytes, len, BPF_F_RECOMPUTE_CSUM))
			bl_reorder_emit(skb, &datagram);
	}
	*at = 0;
	return found;
}

/*
 * Put the first fragment of a datagram, whose verdict is stored, where it is once more,
 * and behind it those that are kept. True when there were some: what is left of the packet
 * is to be dropped.
 */
__noinline bool bl_reorder_release(struct __sk_buff *skb, const struct bl_packet *packet,
				   enum bl_hook hook)
{
	struct bl_fragment_key key;
	bool found = false;
	__u32 first;

	if (!packet)
		return false;
	bl_fragment_key(packet, hook, &key);
	first = bl_reorder_first(bl_reorder_hash(&key));
	for (__u32 i = 0; i < BL_REORDER_GROUP; i++) {
		if (bl_reorder_put(skb, packet->l3, &key, first + i, !found))
			found = true;
	}
	return found;
}
