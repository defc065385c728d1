/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The next hop of a packet that XDP sends on. A fib lookup costs more than the rest of
 * a packet, so its result is kept for the rest of the second.
 */
#pragma once

#include <linux/if_ether.h>
#include <beeline/route.h>

enum bl_hop_limits {
	BL_HOP_SHIFT = 10,
	BL_HOP_ENTRIES = 1 << BL_HOP_SHIFT,
};

struct bl_hop_entry {
	union bl_addr src; /* that its route was looked up with */
	union bl_addr dst; /* where the packet is to go */
	__u32 ifindex; /* by this device; 0 is an empty entry */
	__u32 second; /* as bl_flow_now() */
	__u8 macs[2 * ETH_ALEN]; /* destination and source, as in a frame */
	__u8 pad[4];
};
_Static_assert(sizeof(struct bl_hop_entry) == 56, "bl_hop_entry");

/* By a hash of destination and device. Each load of the programs has its own. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, BL_HOP_ENTRIES);
	__type(key, __u32);
	__type(value, struct bl_hop_entry);
} bl_hop SEC(".maps");

/*
 * The MAC addresses of a packet from @src to @dst that leaves by the device @ifindex.
 * NULL when the kernel has none at hand.
 */
static __always_inline const __u8 *bl_hop_macs(struct BL_CONTEXT *context, bool ipv4,
					       const union bl_addr *src, const union bl_addr *dst,
					       __u32 ifindex)
{
	__u32 hash =
		(dst->word[0] ^ dst->word[1] ^ dst->word[2] ^ dst->word[3] ^ ifindex) * 0x9e3779b9U;
	__u32 index = hash >> (32 - BL_HOP_SHIFT);
	struct bl_hop_entry *hop = bpf_map_lookup_elem(&bl_hop, &index);
	struct bpf_fib_lookup fib = {.ifindex = ifindex};
	__u32 now = bl_flow_now();

	if (!hop)
		return NULL;
	if (hop->ifindex == ifindex && hop->second == now && bl_addr_equal(&hop->dst, dst) &&
	    bl_addr_equal(&hop->src, src))
		return hop->macs;
	bl_fib_addrs(&fib, ipv4, src, dst);
	if (bpf_fib_lookup(context, &fib, sizeof(fib), BPF_FIB_LOOKUP_OUTPUT) ||
	    fib.ifindex != ifindex)
		return NULL;
	hop->src = *src;
	hop->dst = *dst;
	hop->ifindex = ifindex;
	hop->second = now;
	__builtin_memcpy(hop->macs, fib.dmac, ETH_ALEN);
	__builtin_memcpy(hop->macs + ETH_ALEN, fib.smac, ETH_ALEN);
	return hop->macs;
}
