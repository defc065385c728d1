/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Echo requests (ping) to ClusterIPs. No host has these addresses, so the node answers in place
 * of one. External and load-balancer IPs may be a host's, which answers for itself or is down.
 */
#pragma once

#include <beeline/opt/answer.h>

enum bl_echo_type {
	BL_ECHO4_REQUEST = 8,
	BL_ECHO4_REPLY = 0,
	BL_ECHO6_REQUEST = 128,
	BL_ECHO6_REPLY = 129,
};

/* Whether the address, given as its two halves, is a ClusterIP. */
static __always_inline bool bl_echo_serves(__u64 high, __u64 low)
{
	return bl_frontend_get(high, low, 0).flags & BL_FRONTEND_REFUSE_OTHERS;
}

/* Whether the ICMP header at @at begins with the type @request. */
static __always_inline bool bl_echo_is(struct __sk_buff *skb, __u32 at, __u8 request)
{
	struct bl_icmp icmp;

	return !bpf_skb_load_bytes(skb, at, &icmp, sizeof(icmp)) && icmp.type == request &&
	       !icmp.code;
}

/* Make the ICMP request at @at a reply. */
static __always_inline bool bl_echo_reply(struct __sk_buff *skb, __u32 at, __u8 request, __u8 reply)
{
	return !bpf_l4_csum_replace(skb, at + offsetof(struct bl_icmp, checksum),
				    bpf_htons(request << 8), bpf_htons(reply << 8), 2) &&
	       !bpf_skb_store_bytes(skb, at, &reply, sizeof(reply), 0);
}

static __always_inline int bl_echo4(struct __sk_buff *skb, __u32 l3, bool leaves)
{
	union bl_addr src BL_ALIGNED;
	__u8 ttl = BL_ANSWER_TTL;
	__be32 addrs[2];
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, l3, &ip, sizeof(ip)) || ip.version != 4 || ip.ihl < 5 ||
	    ip.protocol != IPPROTO_ICMP || ip.frag_off & bpf_htons(0x3fff) ||
	    !bl_echo_is(skb, l3 + ip.ihl * 4, BL_ECHO4_REQUEST) ||
	    !bl_echo_serves(0, BL_MAPPED(ip.daddr)))
		return TC_ACT_UNSPEC;
	bl_addr_set_ipv4(&src, ip.saddr);
	if (bl_addr_is_martian(&src))
		return TC_ACT_UNSPEC;
	addrs[0] = ip.daddr;
	addrs[1] = ip.saddr;
	if (!bl_echo_reply(skb, l3 + ip.ihl * 4, BL_ECHO4_REQUEST, BL_ECHO4_REPLY) ||
	    bpf_l3_csum_replace(skb, l3 + offsetof(struct iphdr, check), bpf_htons(ip.ttl << 8),
				bpf_htons(ttl << 8), 2) ||
	    bpf_skb_store_bytes(skb, l3 + offsetof(struct iphdr, ttl), &ttl, sizeof(ttl), 0) ||
	    bpf_skb_store_bytes(skb, l3 + offsetof(struct iphdr, saddr), addrs, sizeof(addrs), 0))
		return TC_ACT_SHOT;
	return bl_answer_return(skb, l3, leaves);
}

static __always_inline int bl_echo6(struct __sk_buff *skb, __u32 l3, bool leaves)
{
	__u8 hop_limit = BL_ANSWER_TTL;
	struct ipv6hdr ip BL_ALIGNED;
	const union bl_addr *src = (const union bl_addr *)&ip.saddr;
	const union bl_addr *dst = (const union bl_addr *)&ip.daddr;
	const __u64 *half = (const __u64 *)dst;
	struct in6_addr client;

	if (bpf_skb_load_bytes(skb, l3, &ip, sizeof(ip)) || ip.version != 6 ||
	    ip.nexthdr != IPPROTO_ICMPV6 || !bl_echo_is(skb, l3 + sizeof(ip), BL_ECHO6_REQUEST) ||
	    bl_packet_mapped(src, dst) || bl_addr_is_martian(src) ||
	    !bl_echo_serves(half[0], half[1]))
		return TC_ACT_UNSPEC;
	client = ip.saddr;
	ip.saddr = ip.daddr;
	ip.daddr = client;
	if (!bl_echo_reply(skb, l3 + sizeof(ip), BL_ECHO6_REQUEST, BL_ECHO6_REPLY) ||
	    bpf_skb_store_bytes(skb, l3 + offsetof(struct ipv6hdr, hop_limit), &hop_limit,
				sizeof(hop_limit), BPF_F_RECOMPUTE_CSUM) ||
	    bpf_skb_store_bytes(skb, l3 + offsetof(struct ipv6hdr, saddr), &ip.saddr,
				sizeof(ip.saddr) + sizeof(ip.daddr), 0))
		return TC_ACT_SHOT;
	return bl_answer_return(skb, l3, leaves);
}

/*
 * Answer an echo request to a ClusterIP: out by the device it came in
 * by, or with @leaves the other way. Anything else, fragments among it, passes.
 */
__noinline int bl_echo(struct __sk_buff *skb, __u32 l3, bool leaves)
{
	switch (skb->protocol) {
	case bpf_htons(ETH_P_IP):
		return bl_echo4(skb, l3, leaves);
	case bpf_htons(ETH_P_IPV6):
		return bl_echo6(skb, l3, leaves);
	}
	return TC_ACT_UNSPEC;
}
