/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The tunnel at tc: any packet that XDP does not put into it or take out of it.
 */
#pragma once

#include <beeline/opt/answer.h>
#include <beeline/opt/fragment.h>
#include <beeline/opt/icmp.h>
#include <beeline/opt/too_big.h>
#include <beeline/opt/tunnel.h>

/* The length of a packet from its IP header on; of many in one, that of each. */
static __always_inline __u32 bl_tunnel_len(struct __sk_buff *skb, const struct bl_packet *packet)
{
	__u8 header = sizeof(struct udphdr);

	if (!skb->gso_size)
		return skb->len - packet->l3;
	if (packet->key.proto == IPPROTO_TCP) {
		if (bpf_skb_load_bytes(skb, packet->l4 + 12, &header, sizeof(header)))
			return ~0U;
		header = header >> 4 << 2;
	}
	return packet->l4 - packet->l3 + header + skb->gso_size;
}

/*
 * Decrement the packet's TTL or hop limit, and read its DSCP. The other bits of that byte, ECN,
 * are not carried over when the packet is taken out of the tunnel.
 */
static __always_inline bool bl_tunnel_hop(struct __sk_buff *skb, const struct bl_packet *packet,
					  __u8 *tos)
{
	__u8 first[2], ttl = packet->ttl - 1;

	if (bpf_skb_load_bytes(skb, packet->l3, first, sizeof(first)))
		return false;
	if (!packet->ipv4) {
		*tos = (first[0] << 4 | first[1] >> 4) & 0xfc;
		return !bpf_skb_store_bytes(skb, packet->l3 + offsetof(struct ipv6hdr, hop_limit),
					    &ttl, sizeof(ttl), BPF_F_RECOMPUTE_CSUM);
	}
	*tos = first[1] & 0xfc;
	return !bpf_l3_csum_replace(skb, packet->l3 + offsetof(struct iphdr, check),
				    bpf_htons(packet->ttl << 8), bpf_htons(ttl << 8), 2) &&
	       !bpf_skb_store_bytes(skb, packet->l3 + offsetof(struct iphdr, ttl), &ttl,
				    sizeof(ttl), 0);
}

/* Put the outer headers before the packet. */
static __noinline bool bl_tunnel_wrap4(struct __sk_buff *skb, const struct bl_packet *packet,
				       const struct bl_path *path, const struct bl_tunnel_end *end,
				       __u8 tos)
{
	__u32 len = skb->len - packet->l3;
	struct bl_tunnel4 headers;

	if (bpf_skb_adjust_room(skb, sizeof(headers), BPF_ADJ_ROOM_MAC,
				BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 |
					BPF_F_ADJ_ROOM_ENCAP_L4_UDP))
		return false;
	bl_tunnel_fill4(end, tos, len + sizeof(headers.shim), &headers.ip);
	bl_tunnel_fill(packet, path, len, &headers.shim);
	return !bpf_skb_store_bytes(skb, packet->l3, &headers, sizeof(headers),
				    BPF_F_RECOMPUTE_CSUM);
}

static __noinline bool bl_tunnel_wrap6(struct __sk_buff *skb, const struct bl_packet *packet,
				       const struct bl_path *path, const struct bl_tunnel_end *end,
				       __u8 tos)
{
	__u32 len = skb->len - packet->l3;
	struct bl_tunnel6 headers;

	/* See bl_tunnel_strip, which cannot do it where the kernel knows of the tunnel. */
	if (len < sizeof(struct ipv6hdr)) {
		len = sizeof(struct ipv6hdr);
		if (bpf_skb_change_tail(skb, packet->l3 + len, 0))
			return false;
	}
	if (bpf_skb_adjust_room(skb, sizeof(headers), BPF_ADJ_ROOM_MAC,
				BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 |
					BPF_F_ADJ_ROOM_ENCAP_L4_UDP))
		return false;
	bl_tunnel_fill6(end, tos, len + sizeof(headers.shim), &headers.ip);
	bl_tunnel_fill(packet, path, len, &headers.shim);
	return !bpf_skb_store_bytes(skb, packet->l3, &headers, sizeof(headers),
				    BPF_F_RECOMPUTE_CSUM);
}

/*
 * Send the packet, which has a hop to go, by the tunnel. One that does not fit stays as it
 * is: the longest that would is then returned, as a negative number.
 */
__noinline int bl_tunnel_send(struct __sk_buff *skb, const struct bl_packet *packet,
			      const struct bl_path *path)
{
	const struct bl_device_entry *device;
	struct bl_tunnel_end end;
	__u32 mtu = 0, overhead;
	__u8 tos;

	if (!packet || !path)
		return TC_ACT_SHOT;
	device = bl_device_lookup(path->device);
	if (!device || !bl_tunnel_ends(path, device, &end))
		return TC_ACT_SHOT;
	overhead = bl_tunnel_overhead(end.ipv4);
	if (bpf_check_mtu(skb, device->ifindex, &mtu, 0, 0) < 0 || mtu <= overhead)
		return TC_ACT_SHOT;
	if (bl_tunnel_len(skb, packet) > mtu - overhead)
		return (int)overhead - (int)mtu;
	if (!bl_tunnel_hop(skb, packet, &tos) ||
	    !(end.ipv4 ? bl_tunnel_wrap4(skb, packet, path, &end, tos)
		       : bl_tunnel_wrap6(skb, packet, path, &end, tos)))
		return TC_ACT_SHOT;
	bl_count(BL_REASON_TUNNEL_SENT);
	return bl_skb_send(skb, packet->l3, device->ifindex, NULL);
}

/* Send the packet on by the tunnel. */
static __always_inline int bl_tc_tunnel(struct __sk_buff *skb, const struct bl_packet *packet,
					const struct bl_path *path)
{
	int action;

	if (packet->ttl <= 1)
		return bl_answer_time_exceeded(skb, packet);
	action = bl_tunnel_send(skb, packet, path);
	return action < 0 ? bl_too_big(skb, packet, -action) : action;
}

/*
 * Whether the packet at @at is of @protocol and all there. Of one that is many in one, the
 * header may not say how long it is.
 */
static __always_inline bool bl_tunnel_whole(struct __sk_buff *skb, __u32 at, __be16 protocol)
{
	__be16 length;
	__u32 header;
	__u8 version;

	if (bpf_skb_load_bytes(skb, at, &version, sizeof(version)))
		return false;
	if (protocol == bpf_htons(ETH_P_IP)) {
		header = (version & 0xf) * 4;
		return version >> 4 == 4 && header >= sizeof(struct iphdr) &&
		       !bpf_skb_load_bytes(skb, at + offsetof(struct iphdr, tot_len), &length,
					   sizeof(length)) &&
		       at + header <= skb->len &&
		       (bpf_ntohs(length) >= header || (!length && skb->gso_size)) &&
		       at + bpf_ntohs(length) <= skb->len;
	}
	return version >> 4 == 6 &&
	       !bpf_skb_load_bytes(skb, at + offsetof(struct ipv6hdr, payload_len), &length,
				   sizeof(length)) &&
	       at + sizeof(struct ipv6hdr) + bpf_ntohs(length) <= skb->len;
}

/*
 * Read the packet at @at that the tunnel has brought. False when it is none that a node
 * would have sent: its protocol has no ports and is not ICMP, it is cut short, or it is
 * of the tunnel again.
 */
static __always_inline bool bl_tunnel_open(struct __sk_buff *skb, __u32 at, __be16 protocol,
					   struct bl_packet *inner)
{
	if (!bl_tunnel_whole(skb, at, protocol))
		return false;
	if (bl_packet_parse_as(skb, at, protocol, inner))
		return !bl_tunnel_nested(inner) &&
		       (inner->part != BL_PACKET_LATER || inner->key.proto == IPPROTO_TCP ||
			inner->key.proto == IPPROTO_UDP);
	return inner->part != BL_PACKET_FIRST &&
	       inner->key.proto == (inner->ipv4 ? IPPROTO_ICMP : IPPROTO_ICMPV6);
}

/*
 * Whether an ICMP message that the tunnel has brought is an error about a flow to a backend on
 * this node. That may have begun without the tunnel, at another turn of ECMP.
 */
static __noinline bool bl_tunnel_error(struct __sk_buff *skb, __u32 at, __u32 protocol)
{
	struct bl_icmp_error error = {};
	const struct bl_flow_entry *flow;

	if (!bl_icmp_parse(skb, at, protocol, &error))
		return false;
	flow = bl_flow_find(&error.key);
	return flow && !(bl_flow_bits(flow) & BL_FLOW_IS_REPLY) && !flow->forward.device;
}

/*
 * Make sure that a packet of the tunnel that has no ports may come in: a later fragment, to an
 * address of a Service or a node or after its first one, or an ICMP error. False, counted, when
 * it is to be dropped.
 */
static __always_inline bool bl_tunnel_admit_part(struct __sk_buff *skb,
						 const struct bl_packet *inner, __u32 protocol)
{
	const __u64 *dst = (const __u64 *)&inner->key.dst;

	if (inner->part != BL_PACKET_LATER) {
		if (bl_tunnel_error(skb, inner->l3, protocol))
			return true;
		bl_packet_drop(inner, BL_REASON_TUNNEL_NO_FLOW);
		return false;
	}
	if (bl_frontend_get(dst[0], dst[1], 0).kind == BL_FRONTEND_ADDRESS ||
	    bl_node_of(&inner->key.dst) || bl_peers_has(&inner->key.dst, &inner->key.src))
		return true;
	bl_packet_drop(inner, BL_REASON_TUNNEL_NO_SERVICE);
	return false;
}

/*
 * Take off the outer headers of @packet, and let what remains come in by the device once
 * more: so it is a packet of its own protocol to all who see it.
 */
static __always_inline int bl_tunnel_strip(struct __sk_buff *skb, const struct bl_packet *packet,
					   const struct bl_packet *inner)
{
	__be16 protocol = inner->ipv4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
	const __s32 more = sizeof(struct ipv6hdr) - sizeof(struct iphdr);
	__s32 room = inner->l3 - packet->l3;

	/* The kernel wants an IP header of the outer family to remain. */
	if (!packet->ipv4 && skb->len < inner->l3 + sizeof(struct ipv6hdr) &&
	    bpf_skb_change_tail(skb, inner->l3 + sizeof(struct ipv6hdr), 0))
		return TC_ACT_SHOT;
	if (!packet->l3 && packet->ipv4 != inner->ipv4) {
		/* Without an Ethernet header, the protocol is what the kernel has noted. */
		if (bpf_skb_change_proto(skb, protocol, 0))
			return TC_ACT_SHOT;
		room += inner->ipv4 ? -more : more;
	}
	if (bpf_skb_adjust_room(skb, -room, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO))
		return TC_ACT_SHOT;
	if (packet->l3 && bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_proto), &protocol,
					      sizeof(protocol), 0))
		return TC_ACT_SHOT;
	bl_count(BL_REASON_TUNNEL_RECEIVED);
	return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

/*
 * A packet of the tunnel to this node, for which bl_tunnel_here is true. Nodes send no fragments:
 * what does not fit is answered before it is in the tunnel.
 */
__noinline int bl_tunnel_take(struct __sk_buff *skb, const struct bl_packet *packet)
{
	struct bl_tunnel_work *work = bl_tunnel_begin();
	struct bl_tunnel_shim *shim;

	if (!packet || !work)
		return TC_ACT_SHOT;
	shim = &work->shim;
	__builtin_memset(&work->inner, 0, sizeof(work->inner));
	work->inner.ifindex = packet->ifindex;
	if (!bl_node_is_other(&packet->key.src)) {
		bl_packet_drop(packet, BL_REASON_TUNNEL_UNKNOWN_SENDER);
		return TC_ACT_SHOT;
	}
	if (packet->part == BL_PACKET_WHOLE &&
	    !bpf_skb_load_bytes(skb, packet->l4 + sizeof(shim->udp), &shim->geneve,
				sizeof(shim->geneve)) &&
	    shim->geneve.flags & BL_TUNNEL_CONTROL)
		return TC_ACT_UNSPEC;
	if (packet->part != BL_PACKET_WHOLE ||
	    bpf_skb_load_bytes(skb, packet->l4, shim, sizeof(*shim)) ||
	    !bl_tunnel_wellformed(shim)) {
		bl_packet_drop(packet, BL_REASON_TUNNEL_MALFORMED);
		return TC_ACT_SHOT;
	}
	if (!bl_tunnel_authentic(shim)) {
		bl_packet_drop(packet, BL_REASON_TUNNEL_WRONG_SECRET);
		return TC_ACT_SHOT;
	}
	if (!bl_tunnel_open(skb, packet->l4 + sizeof(*shim), shim->geneve.protocol, &work->inner)) {
		bl_packet_drop(packet, BL_REASON_TUNNEL_MALFORMED);
		return TC_ACT_SHOT;
	}
	if (!(work->inner.l4_len ? bl_tunnel_admit(skb, work)
				 : bl_tunnel_admit_part(skb, &work->inner, shim->geneve.protocol)))
		return TC_ACT_SHOT;
	if (work->inner.part == BL_PACKET_FIRST)
		bl_peers_note(&work->inner.key.dst, &work->inner.key.src, bl_flow_now());
	return bl_tunnel_strip(skb, packet, &work->inner);
}

/*
 * Whether a packet to the tunnel's port is one of this node to another one, and not of
 * Beeline: a process has sent it, or a pod whose packets to nodes are masqueraded. The agent
 * sends its messages from the tunnel's port, by a socket; what is forwarded has none.
 */
__noinline bool bl_tunnel_spoofed(struct __sk_buff *skb, const struct bl_packet *packet)
{
	struct bl_tunnel_shim shim;

	if (!packet || !bl_node_is_self(&packet->key.src) || !bl_node_is_other(&packet->key.dst))
		return false;
	if (packet->part != BL_PACKET_WHOLE)
		return true; /* Beeline sends none */
	if (packet->key.src_port == packet->key.dst_port && skb->sk)
		return false;
	return bpf_skb_load_bytes(skb, packet->l4, &shim, sizeof(shim)) ||
	       !bl_tunnel_wellformed(&shim) || !bl_tunnel_authentic(&shim);
}

/* The options of TCP that matter here. */
enum bl_tcp_option {
	BL_TCP_OPTION_END,
	BL_TCP_OPTION_NOTHING,
	BL_TCP_OPTION_MSS,
	BL_TCP_OPTIONS_MAX = 40,
};

/* Replace the MSS that is at @at. Global: verified once. */
__noinline int bl_tcp_set_mss(struct __sk_buff *skb, const struct bl_packet *packet, __u32 at,
			      __u32 before, __u32 after)
{
	__be16 mss = bpf_htons(after);
	__be16 from = bpf_htons(before), to = mss;

	if (!packet)
		return 0;
	/* A word at an odd offset is added with its bytes swapped. */
	if ((at - packet->l4) & 1) {
		from = __builtin_bswap16(from);
		to = __builtin_bswap16(to);
	}
	bpf_l4_csum_replace(skb, packet->l4 + offsetof(struct tcphdr, check), from, to, sizeof(to));
	return bpf_skb_store_bytes(skb, at, &mss, sizeof(mss), 0);
}

/* A search for the MSS among the options of TCP. */
struct bl_tcp_mss_search {
	struct __sk_buff *skb;
	__u32 at; /* of an option, then of the one that was looked for */
	__u32 end;
	__u32 mss; /* 0 while it is not found */
	__u8 pad[4];
};

/* Callback of bpf_loop: look at one option. Returns 1 to stop. */
static long bl_tcp_mss_look(__u32 index, void *arg)
{
	struct bl_tcp_mss_search *search = arg;
	struct {
		__u8 kind;
		__u8 length;
		__be16 mss;
	} option;

	(void)index;
	if (search->at + sizeof(option) > search->end ||
	    bpf_skb_load_bytes(search->skb, search->at, &option, sizeof(option)) ||
	    option.kind == BL_TCP_OPTION_END)
		return 1;
	if (option.kind == BL_TCP_OPTION_MSS) {
		search->mss = bpf_ntohs(option.mss);
		return 1;
	}
	search->at += option.kind == BL_TCP_OPTION_NOTHING || option.length < 2 ? 1 : option.length;
	return 0;
}

/*
 * Lower the MSS that a SYN to the client announces to what the tunnel has room for, so
 * that the client's segments fit. Without one the client sends less. The uplinks of all
 * nodes are taken to have the MTU of this one.
 */
__noinline int bl_tunnel_clamp_mss(struct __sk_buff *skb, const struct bl_packet *packet)
{
	struct bl_tcp_mss_search search = {.skb = skb};
	__u32 mtu = 0, room;
	__u8 words;

	if (!packet || bpf_check_mtu(skb, 0, &mtu, 0, 0) < 0 ||
	    bpf_skb_load_bytes(skb, packet->l4 + 12, &words, sizeof(words)))
		return 0;
	room = BL_TUNNEL_IPV6 + packet->l4 - packet->l3 + sizeof(struct tcphdr);
	if (mtu <= room)
		return 0;
	search.at = packet->l4 + sizeof(struct tcphdr);
	search.end = packet->l4 + (words >> 4 << 2);
	bpf_loop(BL_TCP_OPTIONS_MAX, bl_tcp_mss_look, &search, 0);
	if (search.mss <= mtu - room)
		return 0;
	return bl_tcp_set_mss(skb, packet, search.at + 2, search.mss, mtu - room);
}
