/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Fragments that come before the first one of their datagram. What becomes of them
 * is not known yet, so they are taken off the wire and kept for a moment. When the
 * first one comes they are put back behind it, at the same place.
 *
 * Room is the same for every load of the programs: BL_REORDER_GROUPS times
 * BL_REORDER_GROUP fragments. One for which there is none passes untouched.
 */
#pragma once

#include <beeline/fragment.h>
#include <beeline/peers.h>
#include <beeline/way.h>

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

static __always_inline bool bl_reorder_old(__u64 word, __u64 now)
{
	return ((now - (word >> 32)) & BL_REORDER_TIME_MASK) >= BL_REORDER_MSEC;
}

/* Take a free place of the group for @word. BL_REORDER_GROUP when there is none. */
static __always_inline __u32 bl_reorder_take(struct bl_reorder_group *group, __u64 word, __u64 now)
{
	for (__u32 i = 0; i < BL_REORDER_GROUP; i++) {
		__u64 was = *(volatile __u64 *)&group->place[i];

		if (was && !bl_reorder_old(was, now))
			continue;
		if (__sync_val_compare_and_swap(&group->place[i], was, word) == was)
			return i;
	}
	return BL_REORDER_GROUP;
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
 * packet is to be dropped, for it is kept. False when it passes or, as the fate in
 * bl_fragment then tells, when the first one has come meanwhile.
 */
__noinline bool bl_reorder_keep(struct __sk_buff *skb, const struct bl_packet *packet,
				const struct bl_fragment_key *key)
{
	struct bl_fragment_key datagram BL_ALIGNED;
	struct bl_fragment_entry *entry, waits = {.fate = BL_FATE_UNKNOWN};
	struct bl_reorder_fragment *fragment;
	struct bl_reorder_group *group;
	__u64 now = bl_reorder_now();
	__u32 index, place;
	__u64 hash, word;

	if (!packet || !key)
		return false;
	datagram = *key;
	hash = bl_reorder_hash(&datagram);
	index = hash >> 32 & (BL_REORDER_GROUPS - 1);
	word = (__u32)hash | now << 32;
	group = bpf_map_lookup_elem(&bl_reorder, &index);
	if (!group)
		return false;
	place = bl_reorder_take(group, word, now);
	index = index * BL_REORDER_GROUP + place;
	if (place >= BL_REORDER_GROUP) {
		bl_count(BL_REASON_FRAGMENT_NOT_KEPT);
		return false;
	}
	fragment = bpf_map_lookup_elem(&bl_reorder_data, &index);
	if (!fragment || !bl_reorder_copy(skb, packet, &datagram, fragment)) {
		bl_count(BL_REASON_FRAGMENT_NOT_KEPT);
		group->place[place] = 0;
		return false;
	}
	waits.second = bl_flow_now();
	bpf_map_update_elem(&bl_fragment, &datagram, &waits, BPF_NOEXIST);
	if (__sync_val_compare_and_swap(&group->place[place], word, word | BL_REORDER_WHOLE) !=
	    word)
		return false;
	/*
	 * Whoever has the first fragment stores its fate before it looks here, so one of
	 * the two sees the other.
	 */
	entry = bpf_map_lookup_elem(&bl_fragment, &datagram);
	if (entry && entry->fate == BL_FATE_UNKNOWN)
		return true;
	word |= BL_REORDER_WHOLE;
	return __sync_val_compare_and_swap(&group->place[place], word, 0) != word;
}

/* Make @skb the fragment and put it where the packet is. */
static __always_inline void bl_reorder_put(struct __sk_buff *skb, __u32 l3, __u64 flags,
					   const struct bl_reorder_fragment *fragment)
{
	__u32 len = fragment->len;

	if (!bl_reorder_bound(&len) || bpf_skb_change_tail(skb, l3 + len, 0))
		return;
	if (!bpf_skb_store_bytes(skb, l3, fragment->bytes, len, BPF_F_RECOMPUTE_CSUM))
		bpf_clone_redirect(skb, skb->ifindex, flags);
}

/*
 * Put the first fragment of the datagram @key, whose fate is stored, where it is once
 * more, and behind it those that are kept. True when there were some: what is left of
 * the packet is to be dropped.
 */
__noinline bool bl_reorder_release(struct __sk_buff *skb, __u32 l3,
				   const struct bl_fragment_key *key)
{
	struct bl_fragment_key datagram BL_ALIGNED;
	struct bl_reorder_fragment *fragment;
	struct bl_reorder_group *group;
	__u64 now = bl_reorder_now();
	bool found = false;
	__u32 first, index;
	__u64 hash, flags;

	if (!key)
		return false;
	datagram = *key;
	flags = datagram.hook == BL_HOOK_EGRESS || datagram.hook == BL_HOOK_POD_EGRESS
			? 0
			: BPF_F_INGRESS;
	hash = bl_reorder_hash(&datagram);
	first = hash >> 32 & (BL_REORDER_GROUPS - 1);
	group = bpf_map_lookup_elem(&bl_reorder, &first);
	if (!group)
		return false;
	first *= BL_REORDER_GROUP;
	for (__u32 i = 0; i < BL_REORDER_GROUP; i++) {
		__u64 word = *(volatile __u64 *)&group->place[i];

		if (!(word & BL_REORDER_WHOLE) || (__u32)word != (__u32)hash ||
		    bl_reorder_old(word, now))
			continue;
		/* No longer whole, and nobody else's for as long as it is not old. */
		if (__sync_val_compare_and_swap(&group->place[i], word, word & ~BL_REORDER_WHOLE) !=
		    word)
			continue;
		index = first + i;
		fragment = bpf_map_lookup_elem(&bl_reorder_data, &index);
		if (fragment && bl_fragment_same(&fragment->key, &datagram)) {
			if (!found)
				bpf_clone_redirect(skb, skb->ifindex, flags);
			found = true;
			bl_reorder_put(skb, l3, flags, fragment);
		}
		group->place[i] = 0;
	}
	return found;
}
