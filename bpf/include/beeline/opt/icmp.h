/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ICMP errors about packets of translated flows. An error quotes the packet as it
 * looked where the error arose; it must reach the other side quoting the packet as
 * that side sent it, or path-MTU discovery and traceroute end here.
 */
#pragma once

#include <beeline/opt/answer.h>

enum bl_icmp_error_type {
	BL_ICMP4_PARAMETER = 12,
	BL_ICMP6_PARAMETER = 4,
};

struct bl_icmp_error {
	/* The flow direction that the error travels in: the quoted packet's reverse. */
	struct bl_flow_key key;
	union bl_addr from; /* who sent the error */
	__u32 l3;
	__u32 icmp;
	__u32 inner; /* the quoted IP header */
	__u32 ports; /* in the quoted packet */
	__u8 ttl;
	bool ipv4;
};

static __always_inline bool bl_icmp_is_error(bool ipv4, __u8 type)
{
	if (ipv4)
		return type == BL_ICMP4_UNREACHABLE || type == BL_ICMP4_TIME_EXCEEDED ||
		       type == BL_ICMP4_PARAMETER;
	return type >= BL_ICMP6_UNREACHABLE && type <= BL_ICMP6_PARAMETER;
}

/* Take the ports of the quoted packet; its reverse is the key. */
static __always_inline bool bl_icmp_ports(struct __sk_buff *skb, struct bl_icmp_error *error)
{
	__be16 ports[2];

	if (error->key.proto != IPPROTO_TCP && error->key.proto != IPPROTO_UDP &&
	    error->key.proto != IPPROTO_SCTP)
		return false;
	if (bpf_skb_load_bytes(skb, error->ports, ports, sizeof(ports)))
		return false;
	error->key.src_port = ports[1];
	error->key.dst_port = ports[0];
	return true;
}

static __always_inline bool bl_icmp_parse4(struct __sk_buff *skb, struct bl_icmp_error *error)
{
	struct iphdr ip;
	__u8 type;

	if (bpf_skb_load_bytes(skb, error->l3, &ip, sizeof(ip)))
		return false;
	if (ip.version != 4 || ip.ihl < 5 || ip.protocol != IPPROTO_ICMP ||
	    ip.frag_off & bpf_htons(0x3fff))
		return false;
	bl_addr_set_ipv4(&error->from, ip.saddr);
	error->ttl = ip.ttl;
	error->icmp = error->l3 + ip.ihl * 4;
	if (bpf_skb_load_bytes(skb, error->icmp, &type, sizeof(type)) ||
	    !bl_icmp_is_error(true, type))
		return false;
	error->inner = error->icmp + sizeof(struct bl_icmp);
	if (bpf_skb_load_bytes(skb, error->inner, &ip, sizeof(ip)))
		return false;
	if (ip.version != 4 || ip.ihl < 5 || ip.frag_off & bpf_htons(0x1fff))
		return false;
	bl_addr_set_ipv4(&error->key.src, ip.daddr);
	bl_addr_set_ipv4(&error->key.dst, ip.saddr);
	error->key.proto = ip.protocol;
	error->ports = error->inner + ip.ihl * 4;
	return bl_icmp_ports(skb, error);
}

static __always_inline bool bl_icmp_parse6(struct __sk_buff *skb, struct bl_icmp_error *error)
{
	struct bl_extension fragment = {};
	struct ipv6hdr ip;
	__u8 type;

	if (bpf_skb_load_bytes(skb, error->l3, &ip, sizeof(ip)))
		return false;
	if (ip.version != 6 || ip.nexthdr != IPPROTO_ICMPV6)
		return false;
	__builtin_memcpy(&error->from, &ip.saddr, sizeof(error->from));
	error->ttl = ip.hop_limit;
	error->icmp = error->l3 + sizeof(ip);
	if (bpf_skb_load_bytes(skb, error->icmp, &type, sizeof(type)) ||
	    !bl_icmp_is_error(false, type))
		return false;
	error->inner = error->icmp + sizeof(struct bl_icmp);
	if (bpf_skb_load_bytes(skb, error->inner, &ip, sizeof(ip)) || ip.version != 6)
		return false;
	__builtin_memcpy(&error->key.src, &ip.daddr, sizeof(error->key.src));
	__builtin_memcpy(&error->key.dst, &ip.saddr, sizeof(error->key.dst));
	if (bl_packet_mapped(&error->key.src, &error->key.dst))
		return false;
	error->key.proto = ip.nexthdr;
	error->ports = error->inner + sizeof(ip);
	if (!bl_packet_extensions(skb, &error->ports, &error->key.proto, &fragment) ||
	    bl_extension_later(&fragment))
		return false;
	return bl_icmp_ports(skb, error);
}

/*
 * Read an ICMP error, whose network header, of @protocol, is at @l3, that quotes a packet of a
 * protocol with ports. False when the packet is none. Changes nothing.
 */
static __noinline bool bl_icmp_parse(struct __sk_buff *skb, __u32 l3, __u32 protocol,
				     struct bl_icmp_error *error)
{
	error->l3 = l3;
	bl_flow_key_clear(&error->key);
	switch (protocol) {
	case bpf_htons(ETH_P_IP):
		error->ipv4 = true;
		return bl_icmp_parse4(skb, error);
	case bpf_htons(ETH_P_IPV6):
		error->ipv4 = false;
		return bl_icmp_parse6(skb, error);
	}
	return false;
}

static __always_inline bool bl_icmp_rewrite4(struct __sk_buff *skb,
					     const struct bl_icmp_error *error,
					     const union bl_addr *from, const struct bl_rewrite *to,
					     bool hop)
{
	__be32 old_inner[2] = {error->key.dst.word[3], error->key.src.word[3]};
	__be32 new_inner[2] = {to->dst.word[3], to->src.word[3]};
	__be32 old_outer[2] = {error->from.word[3], error->key.dst.word[3]};
	__be32 new_outer[2] = {from->word[3], to->dst.word[3]};
	__u32 check = error->l3 + offsetof(struct iphdr, check);
	__u8 ttl = error->ttl - 1;
	__s64 diff;

	/* The quoted header's checksum makes up for its addresses. */
	diff = bpf_csum_diff(old_inner, sizeof(old_inner), new_inner, sizeof(new_inner), 0);
	if (bpf_l3_csum_replace(skb, error->inner + offsetof(struct iphdr, check), 0, diff, 0) ||
	    bpf_skb_store_bytes(skb, error->inner + offsetof(struct iphdr, saddr), new_inner,
				sizeof(new_inner), 0))
		return false;
	diff = bpf_csum_diff(old_outer, sizeof(old_outer), new_outer, sizeof(new_outer), 0);
	if (bpf_l3_csum_replace(skb, check, 0, diff, 0) ||
	    bpf_skb_store_bytes(skb, error->l3 + offsetof(struct iphdr, saddr), new_outer,
				sizeof(new_outer), 0))
		return false;
	if (!hop)
		return true;
	return !bpf_l3_csum_replace(skb, check, bpf_htons(error->ttl << 8), bpf_htons(ttl << 8),
				    2) &&
	       !bpf_skb_store_bytes(skb, error->l3 + offsetof(struct iphdr, ttl), &ttl, sizeof(ttl),
				    0);
}

/* Addresses as they stand one after the other in an IPv6 header. */
struct bl_icmp_pair {
	union bl_addr src;
	union bl_addr dst;
};

static __always_inline bool bl_icmp_rewrite6(struct __sk_buff *skb,
					     const struct bl_icmp_error *error,
					     const union bl_addr *from, const struct bl_rewrite *to,
					     bool hop)
{
	__u32 check = error->icmp + offsetof(struct bl_icmp, checksum);
	struct bl_icmp_pair before = {error->key.dst, error->key.src};
	struct bl_icmp_pair after = {to->dst, to->src};
	__u8 hop_limit = error->ttl - 1;
	__s64 diff;

	diff = bpf_csum_diff((__be32 *)&before, sizeof(before), (__be32 *)&after, sizeof(after), 0);
	if (bpf_l4_csum_replace(skb, check, 0, diff, 0) ||
	    bpf_skb_store_bytes(skb, error->inner + offsetof(struct ipv6hdr, saddr), &after,
				sizeof(after), 0))
		return false;
	before.src = error->from;
	before.dst = error->key.dst;
	after.src = *from;
	after.dst = to->dst;
	diff = bpf_csum_diff((__be32 *)&before, sizeof(before), (__be32 *)&after, sizeof(after), 0);
	if (bpf_l4_csum_replace(skb, check, 0, diff, BPF_F_PSEUDO_HDR) ||
	    bpf_skb_store_bytes(skb, error->l3 + offsetof(struct ipv6hdr, saddr), &after,
				sizeof(after), BPF_F_RECOMPUTE_CSUM))
		return false;
	return !hop || !bpf_skb_store_bytes(skb, error->l3 + offsetof(struct ipv6hdr, hop_limit),
					    &hop_limit, sizeof(hop_limit), BPF_F_RECOMPUTE_CSUM);
}

/*
 * Let the error go on to the side that @to leads to, where packets of @error's
 * direction become packets with the addresses of @to. Its sender stays, unless it
 * is the flow's own end. False when the packet is to be dropped.
 */
__noinline bool bl_icmp_rewrite(struct __sk_buff *skb, const struct bl_icmp_error *error,
				const struct bl_rewrite *to, bool hop)
{
	__be16 old_ports[2], new_ports[2];
	const union bl_addr *from;
	__u32 check;

	if (!error || !to)
		return false;
	from = &error->from;
	old_ports[0] = error->key.dst_port;
	old_ports[1] = error->key.src_port;
	new_ports[0] = to->dst_port;
	new_ports[1] = to->src_port;
	check = error->icmp + offsetof(struct bl_icmp, checksum);
	if (from->word[3] == error->key.src.word[3] && from->word[2] == error->key.src.word[2] &&
	    from->word[1] == error->key.src.word[1] && from->word[0] == error->key.src.word[0])
		from = &to->src;
	if (bpf_l4_csum_replace(skb, check, *(__u32 *)old_ports, *(__u32 *)new_ports,
				sizeof(new_ports)) ||
	    bpf_skb_store_bytes(skb, error->ports, new_ports, sizeof(new_ports), 0))
		return false;
	return error->ipv4 ? bl_icmp_rewrite4(skb, error, from, to, hop)
			   : bl_icmp_rewrite6(skb, error, from, to, hop);
}
