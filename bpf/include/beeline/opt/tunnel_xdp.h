/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The tunnel at XDP: packets with plain headers.
 */
#pragma once

#include <beeline/hop.h>
#include <beeline/opt/tunnel.h>

/* Decrement the TTL of an IPv4 packet. */
static __always_inline void bl_xdp_hop4(struct iphdr *ip)
{
	__u16 *life = (__u16 *)&ip->ttl;
	__u32 sum = (__u16)~ip->check + (__u16) ~*life;

	ip->ttl--;
	ip->check = bl_csum_fold(sum + *life);
}

/*
 * Put the outer headers before the packet, of which @room bytes have been made. False when
 * the frame is not as it was read.
 */
static __always_inline bool bl_xdp_wrap(struct xdp_md *xdp, const struct bl_packet *packet,
					const struct bl_path *path, const struct bl_tunnel_end *end,
					const __u8 *macs)
{
	void *data = (void *)(long)xdp->data, *limit = (void *)(long)xdp->data_end;
	__u32 len = packet->l4 + packet->l4_len - packet->l3;
	struct ethhdr *eth = data;
	struct bl_tunnel_shim *shim;
	struct bl_tunnel4 *four = data + sizeof(*eth);
	struct bl_tunnel6 *six = data + sizeof(*eth);
	struct iphdr *inner = end->ipv4 ? (void *)(four + 1) : (void *)(six + 1);
	__u8 tos;

	if ((void *)inner + sizeof(struct ipv6hdr) > limit)
		return false;
	if (packet->ipv4) {
		tos = inner->tos & 0xfc;
		bl_xdp_hop4(inner);
	} else {
		tos = bpf_ntohs(*(__be16 *)inner) >> 4 & 0xfc;
		((struct ipv6hdr *)inner)->hop_limit--;
	}
	__builtin_memcpy(data, macs, 2 * ETH_ALEN);
	if (end->ipv4) {
		eth->h_proto = bpf_htons(ETH_P_IP);
		bl_tunnel_fill4(end, tos, len + sizeof(*shim), &four->ip);
		shim = &four->shim;
	} else {
		eth->h_proto = bpf_htons(ETH_P_IPV6);
		bl_tunnel_fill6(end, tos, len + sizeof(*shim), &six->ip);
		shim = &six->shim;
	}
	bl_tunnel_fill(packet, path, len, shim);
	return true;
}

/*
 * Send the packet by the tunnel, as it is but for one hop. What cannot be sent from here
 * passes untouched.
 */
static __noinline int bl_xdp_tunnel(struct xdp_md *xdp, const struct bl_packet *packet,
				    const struct bl_path *path)
{
	const struct bl_device_entry *device = bl_device_lookup(path->device);
	__u32 len = packet->l4 + packet->l4_len, overhead;
	struct bl_tunnel_end end;
	const __u8 *macs;

	if (!device || !device->root || packet->ttl <= 1 || !bl_tunnel_ends(path, device, &end))
		return XDP_PASS;
	if (packet->l3 != sizeof(struct ethhdr) || device->tag[0].protocol)
		return XDP_PASS;
	overhead = bl_tunnel_overhead(end.ipv4);
	if (len - packet->l3 + overhead > device->mtu ||
	    !(device->flags &
	      (len <= (__u32)(xdp->data_end - xdp->data) ? BL_DEVICE_XDP_SEND
							 : BL_DEVICE_XDP_SEND_BUFFERS)))
		return XDP_PASS;
	macs = bl_hop_macs(xdp, end.ipv4, &end.source, &end.node, device->ifindex);
	if (!macs || bpf_xdp_adjust_head(xdp, -(int)overhead))
		return XDP_PASS;
	if (!bl_xdp_wrap(xdp, packet, path, &end, macs))
		return XDP_DROP;
	bl_count(BL_REASON_XDP_SENT);
	bl_count(BL_REASON_TUNNEL_SENT);
	return device->root == xdp->ingress_ifindex ? XDP_TX : (int)bpf_redirect(device->root, 0);
}

/* Take off the outer headers, up to @inner. */
static __always_inline int bl_xdp_strip(struct xdp_md *xdp, const struct bl_packet *inner)
{
	struct ethhdr *eth = (void *)(long)xdp->data, header;

	if ((void *)(eth + 1) > (void *)(long)xdp->data_end)
		return XDP_PASS;
	header = *eth;
	header.h_proto = inner->ipv4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
	if (bpf_xdp_adjust_head(xdp, inner->l3 - sizeof(header)))
		return XDP_PASS;
	eth = (void *)(long)xdp->data;
	if ((void *)(eth + 1) > (void *)(long)xdp->data_end)
		return XDP_DROP;
	*eth = header;
	bl_count(BL_REASON_TUNNEL_RECEIVED);
	return XDP_PASS;
}

/*
 * A packet of the tunnel to this node, for which bl_tunnel_here is true: tc gets what is
 * inside. It takes out itself what has other headers than TCP and UDP packets mostly have.
 */
static __noinline int bl_xdp_take(struct xdp_md *xdp, const struct bl_packet *packet)
{
	void *data = (void *)(long)xdp->data, *end = (void *)(long)xdp->data_end;
	struct bl_tunnel_work *work = bl_tunnel_begin();
	struct bl_packet *inner;
	struct bl_tunnel_shim *shim;
	__u32 at;

	if (!work || packet->l3 != sizeof(struct ethhdr))
		return XDP_PASS;
	if (!bl_node_is_other(&packet->key.src)) {
		bl_packet_drop(packet, BL_REASON_TUNNEL_UNKNOWN_SENDER);
		return XDP_DROP;
	}
	at = sizeof(struct ethhdr) + (packet->ipv4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));
	shim = data + at;
	inner = &work->inner;
	if ((void *)(shim + 1) > end || shim->geneve.flags & BL_TUNNEL_CONTROL ||
	    !bl_tunnel_wellformed(shim))
		return XDP_PASS;
	if (!bl_tunnel_authentic(shim)) {
		bl_packet_drop(packet, BL_REASON_TUNNEL_WRONG_SECRET);
		return XDP_DROP;
	}
	if (!bl_packet_plain(data, end, at + sizeof(*shim), shim->geneve.protocol, inner) ||
	    bl_tunnel_nested(inner) || inner->l4 + inner->l4_len > packet->l4 + packet->l4_len)
		return XDP_PASS;
	inner->part = BL_PACKET_WHOLE;
	inner->ifindex = packet->ifindex;
	work->shim = *shim;
	if (!bl_tunnel_admit(xdp, work))
		return XDP_DROP;
	return bl_xdp_strip(xdp, inner);
}
