/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Packets that do not fit through the device that they would leave by. A packet of IPv4 that may
 * be fragmented is put where it came once more in two fragments, so that each of them takes
 * the usual way, and the second may be split again. All others get an ICMP error.
 */
#pragma once

#include <beeline/opt/answer.h>
#include <beeline/opt/reorder.h>

/* The data of the second fragment. */
struct bl_split_data {
	__u8 bytes[BL_REORDER_BYTES];
};

/* Each load of the programs has its own. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bl_split_data);
} bl_split_data SEC(".maps");

/* Make the packet a fragment with @len bytes of data. */
static __always_inline bool bl_split_shape(struct __sk_buff *skb, __u32 l3, struct iphdr *ip,
					   __u32 len, __u16 fragment)
{
	ip->tot_len = bpf_htons(sizeof(*ip) + len);
	ip->frag_off = bpf_htons(fragment);
	ip->check = 0;
	ip->check = bl_csum_fold(bpf_csum_diff(NULL, 0, (__be32 *)ip, sizeof(*ip), 0));
	return !bpf_skb_change_tail(skb, l3 + sizeof(*ip) + len, 0) &&
	       !bpf_skb_store_bytes(skb, l3, ip, sizeof(*ip), BPF_F_RECOMPUTE_CSUM);
}

/*
 * Whether the packet, the IP header of which is filled in, may be split: it has no IP options, not
 * all of which would go into the second fragment, and its checksum is in it, for no device computes
 * that over two packets.
 */
static __always_inline bool bl_split_may(struct __sk_buff *skb, const struct bl_packet *packet,
					 struct iphdr *ip)
{
	return packet->ipv4 && !packet->leaves && !skb->gso_size &&
	       !bpf_skb_load_bytes(skb, packet->l3, ip, sizeof(*ip)) && ip->ihl == 5 &&
	       !(ip->frag_off & bpf_htons(BL_IP_DONT_FRAGMENT)) &&
	       !bl_packet_unsummed(skb, packet->l4);
}

/*
 * Put the packet where it came in two fragments, the first of which fits in @mtu. False when it
 * cannot be: it is then as it was.
 */
__noinline bool bl_split(struct __sk_buff *skb, const struct bl_packet *packet, __u32 mtu)
{
	struct bl_split_data *data;
	__u32 zero = 0, len, rest, l3;
	struct iphdr ip;
	__u16 fragment;

	data = bpf_map_lookup_elem(&bl_split_data, &zero);
	if (!packet || !data || mtu < sizeof(ip) || !bl_split_may(skb, packet, &ip))
		return false;
	l3 = packet->l3;
	len = (mtu - sizeof(ip)) & 0xfff8;
	rest = bpf_ntohs(ip.tot_len) - sizeof(ip) - len;
	if (!len || !bl_reorder_bound(&rest) ||
	    bpf_skb_load_bytes(skb, l3 + sizeof(ip) + len, data->bytes, rest))
		return false;
	fragment = bpf_ntohs(ip.frag_off);
	if (bl_split_shape(skb, l3, &ip, len, fragment | BL_IP_MORE_FRAGMENTS))
		bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
	if (bl_split_shape(skb, l3, &ip, rest, fragment + len / 8) &&
	    !bpf_skb_store_bytes(skb, l3 + sizeof(ip), data->bytes, rest, BPF_F_RECOMPUTE_CSUM))
		bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
	return true;
}

/* The action for a packet that is longer than @mtu. What is split is dropped. */
static __always_inline int bl_too_big(struct __sk_buff *skb, const struct bl_packet *packet,
				      __u32 mtu)
{
	return bl_split(skb, packet, mtu) ? TC_ACT_SHOT : bl_answer_too_big(skb, packet, mtu);
}
