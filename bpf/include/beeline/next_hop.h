/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The next hop of a packet that tc sends to another node, or back to a client.
 */
#pragma once

#include <beeline/route.h>

/* The route of packets from one address to another, as it was looked up last. */
struct bl_next_hop_entry {
	union bl_addr src;
	union bl_addr dst;
	__u32 from; /* the device that they are at; 0 is an empty entry */
	__u32 jiffy; /* of the lookup */
	__u32 ifindex; /* the device that they leave by; 0: they are not forwarded */
	struct bpf_redir_neigh via;
};
_Static_assert(sizeof(struct bl_next_hop_entry) == 64, "bl_next_hop_entry");

enum bl_next_hop_limits {
	BL_NEXT_HOP_SHIFT = 8,
	BL_NEXT_HOP_ENTRIES = 1 << BL_NEXT_HOP_SHIFT,
};

/* By a hash of both addresses. Each load of the programs has its own. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, BL_NEXT_HOP_ENTRIES);
	__type(key, __u32);
	__type(value, struct bl_next_hop_entry);
} bl_next_hop SEC(".maps");

static __always_inline __u32 bl_next_hop_index(const union bl_addr *src, const union bl_addr *dst)
{
	__u32 hash = src->word[0] ^ src->word[1] ^ src->word[2] ^ src->word[3];

	hash = hash * 0x9e3779b9U ^ dst->word[0] ^ dst->word[1] ^ dst->word[2] ^ dst->word[3];
	return hash * 0x9e3779b9U >> (32 - BL_NEXT_HOP_SHIFT);
}

/* Look up the route of a packet at the device @hop->from. */
__noinline int bl_next_hop_find(struct __sk_buff *skb, struct bl_next_hop_entry *hop)
{
	struct bpf_fib_lookup fib = {};

	if (!hop)
		return 0;
	fib.ifindex = hop->from;
	hop->ifindex = bl_fib(skb, &fib, &hop->src, &hop->dst, bl_addr_is_ipv4(&hop->dst))
			       ? fib.ifindex
			       : 0;
	hop->via.nh_family = fib.family;
	__builtin_memcpy(hop->via.ipv6_nh, fib.ipv6_dst, sizeof(hop->via.ipv6_nh));
	return 0;
}

/*
 * The next hop of a packet that is at this device and leaves by the device @id of bl_device, by the
 * route from @src to @dst, which is kept for the rest of the jiffy. NULL where the kernel is to look
 * for one by that device and the addresses that the packet leaves with: the route leads by another
 * device or has no next hop alone; a rule for the packet's mark may choose another one; or the device
 * has no Ethernet header, and may be a tunnel that takes its other end from the kernel's route.
 */
static __noinline struct bpf_redir_neigh *
bl_next_hop_of(struct __sk_buff *skb, __u32 id, const union bl_addr *src, const union bl_addr *dst)
{
	const struct bl_device_entry *device = bl_device_lookup(id);
	__u32 index = bl_next_hop_index(src, dst), now = bpf_jiffies64();
	struct bl_next_hop_entry *hop = bpf_map_lookup_elem(&bl_next_hop, &index);

	if (!hop || !device || !device->ifindex || device->flags & BL_DEVICE_NO_ETHERNET ||
	    skb->mark)
		return NULL;
	if (hop->jiffy != now || hop->from != skb->ifindex || !bl_addr_equal(&hop->dst, dst) ||
	    !bl_addr_equal(&hop->src, src)) {
		hop->src = *src;
		hop->dst = *dst;
		hop->from = skb->ifindex;
		hop->jiffy = now;
		bl_next_hop_find(skb, hop);
	}
	return hop->ifindex == device->ifindex ? &hop->via : NULL;
}
