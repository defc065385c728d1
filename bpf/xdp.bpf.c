// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Services reached by packets that go on to another node, before the kernel allocates an
 * skb: clients' packets to a backend there, and its replies; and tunnel traffic. All other
 * packets pass untouched (XDP_PASS) to the program at tc ingress of the device, which has the
 * same tables and flows.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

/* For the headers that do not mind which kind of program includes them. */
#define BL_CONTEXT xdp_md
#define bl_context_ct_lookup bpf_xdp_ct_lookup
#define bl_context_mark(context) 0
#define BL_ANSWERS false
#define BL_EVENT_HOOK BL_EVENT_AT_XDP
/* Nobody has seen the packet before. */
#define BL_SYN_FIRST true
#define BL_KEEPS_FORMER false

#include <beeline/pipeline.h>
#include <beeline/hop.h>
#include <beeline/opt/traffic_packet.h>
#include <beeline/opt/tunnel_xdp.h>
#include <beeline/opt/vlan.h>

/* The program runs where the kernel receives packets, not in a driver. */
volatile const bool bl_xdp_generic;

/*
 * Whether the packet's checksum may be left to the sending device (CHECKSUM_PARTIAL), as of
 * packets from a virtual device, or aggregated by the kernel (GRO): it would have to be changed in
 * another way, and nothing completes it when XDP sends the packet. One without a checksum may have
 * a packet inside whose checksum is left so.
 */
static __always_inline bool bl_xdp_unfinished(struct xdp_md *xdp, const struct bl_packet *packet)
{
	bool udp = packet->key.proto == IPPROTO_UDP;
	__u32 at = packet->l4 +
		   (udp ? offsetof(struct udphdr, check) : offsetof(struct tcphdr, check));
	__u16 sum;

	return bpf_xdp_load_bytes(xdp, at, &sum, sizeof(sum)) || (udp && !sum) ||
	       sum == bl_csum_unfinished(packet);
}

/*
 * Whether a frame is for the device's own MAC address. Broadcast, multicast and frames for
 * another host are left to tc, where the kernel has told them apart.
 */
static __always_inline bool bl_xdp_for(const struct ethhdr *eth, __u32 ifindex)
{
	__u32 place = ifindex % BL_MAC_PLACES;
	const struct bl_mac_entry *entry = bpf_map_lookup_elem(&bl_mac, &place);

	return entry && entry->ifindex == ifindex &&
	       !__builtin_memcmp(entry->mac, eth->h_dest, sizeof(entry->mac));
}

/* Read the headers of a frame, as bl_xdp_frame. False when it is left to tc. */
static __always_inline bool bl_xdp_parse(struct xdp_md *xdp, struct bl_packet *packet, bool own)
{
	void *data = (void *)(long)xdp->data, *end = (void *)(long)xdp->data_end;
	const struct ethhdr *eth = data;
	__u32 len = end - data;

	if ((void *)(eth + 1) > end)
		return false;
	packet->ifindex = xdp->ingress_ifindex;
	if (!bl_packet_plain(data, end, sizeof(*eth), eth->h_proto, packet)) {
		if (!bl_vlan_plain(xdp, packet, own))
			return false;
	} else if (!own) {
		struct bl_vlan_key key = {.ifindex = packet->ifindex};

		if (!bl_vlan_enter(&key, packet))
			return false;
	}
	if (!bl_xdp_for(eth, packet->ifindex))
		return false;
	len = packet->l4 + packet->l4_len;
	if (len > (__u32)(end - data) && len > bpf_xdp_get_buff_len(xdp))
		return false;
	return !bl_xdp_generic || !bl_xdp_unfinished(xdp, packet);
}

/* A checksum after @change, the sum of what has changed under it. */
static __always_inline __u16 bl_xdp_checksum(__u16 checksum, __u32 change)
{
	return bl_csum_fold((__u16)~checksum + (change & 0xffff) + (change >> 16));
}

/* The sum of what @to changes under the checksum of TCP or UDP. */
static __always_inline __u32 bl_xdp_change(const struct bl_packet *packet,
					   const struct bl_rewrite *to, __u32 addrs)
{
	__u32 ports = bl_csum_change((const __u32 *)&packet->key.src_port,
				     (const __u32 *)&to->src_port, 1);

	return (addrs & 0xffff) + (addrs >> 16) + (ports & 0xffff) + (ports >> 16);
}

/* Give TCP or UDP at @l4 its new ports. A UDP checksum of zero is none and stays so. */
static __always_inline void bl_xdp_layer4(struct tcphdr *l4, const struct bl_packet *packet,
					  const struct bl_rewrite *to, __u32 change)
{
	struct udphdr *udp = (struct udphdr *)l4;

	*(__u32 *)l4 = *(const __u32 *)&to->src_port;
	if (packet->key.proto == IPPROTO_TCP) {
		l4->check = bl_xdp_checksum(l4->check, change);
	} else if (udp->check) {
		udp->check = bl_xdp_checksum(udp->check, change);
		if (!udp->check)
			udp->check = 0xffff;
	}
}

/*
 * Rewrite the frame with one hop less to live, and send it by the device of @path.
 * What cannot be sent from here passes untouched.
 */
__noinline int bl_xdp_send(struct xdp_md *xdp, const struct bl_packet *packet,
			   const struct bl_path *path)
{
	/* To a backend by no address: a table of routes for that of this node may know none. */
	union bl_addr none BL_ALIGNED = {};
	const struct bl_device_entry *device;
	__u32 addrs, len, l3 = sizeof(struct ethhdr);
	struct bl_plain4 *four;
	struct bl_plain6 *six;
	const __u8 *macs;
	void *data, *end;

	if (!packet || !path)
		return XDP_PASS;
	device = bl_device_lookup(path->device);
	len = packet->l4 + packet->l4_len;
	if (!device || !device->root || packet->ttl <= 1 || len - packet->l3 > device->mtu)
		return XDP_PASS;
	data = (void *)(long)xdp->data;
	end = (void *)(long)xdp->data_end;
	if (!(device->flags &
	      (len <= (__u32)(end - data) ? BL_DEVICE_XDP_SEND : BL_DEVICE_XDP_SEND_BUFFERS)))
		return XDP_PASS;
	macs = bl_hop_macs(xdp, packet->ipv4, path->reply ? &path->to.src : &none, &path->to.dst,
			   device->ifindex);
	if (!macs)
		return XDP_PASS;
	if (unlikely(packet->l3 != l3 || device->tag[0].protocol)) {
		l3 = bl_vlan_leave(xdp, packet, device) & 0x1f;
		if (!l3)
			return XDP_PASS;
		data = (void *)(long)xdp->data;
		end = (void *)(long)xdp->data_end;
	}
	if (packet->ipv4) {
		__u32 from[2] = {packet->key.src.word[3], packet->key.dst.word[3]};
		__u32 now[2] = {path->to.src.word[3], path->to.dst.word[3]};

		four = data + l3;
		if ((void *)(four + 1) > end)
			return XDP_PASS;
		addrs = bl_csum_change(from, now, 2);
		bl_plain_ipv4(&four->ip, &path->to, addrs, true);
		bl_xdp_layer4(&four->tcp, packet, &path->to,
			      bl_xdp_change(packet, &path->to, addrs));
	} else {
		six = data + l3;
		if ((void *)(six + 1) > end)
			return XDP_PASS;
		addrs = bl_csum_change((const __u32 *)&packet->key.src,
				       (const __u32 *)&path->to.src, 8);
		bl_plain_ipv6(&six->ip, &path->to, true);
		bl_xdp_layer4(&six->tcp, packet, &path->to,
			      bl_xdp_change(packet, &path->to, addrs));
	}
	__builtin_memcpy(data, macs, 2 * ETH_ALEN);
	bl_count(BL_REASON_XDP_SENT);
	return device->root == xdp->ingress_ifindex ? XDP_TX : (int)bpf_redirect(device->root, 0);
}

/*
 * Serve a frame. Without @own no frame is taken for one of the device that it is at,
 * but for one of that which it belongs to by bl_vlan.
 */
static __always_inline int bl_xdp_frame(struct xdp_md *xdp, bool own)
{
	struct bl_packet packet = {.plain = true};
	struct bl_path path = {};
	int action;

	if (!bl_xdp_parse(xdp, &packet, own))
		return XDP_PASS;
	if (bl_tunnel_here(&packet))
		return bl_xdp_generic ? XDP_PASS : bl_xdp_take(xdp, &packet);
	switch (bl_decide(xdp, &packet, BL_HOOK_INGRESS, &path)) {
	case BL_VERDICT_TRANSLATED:
		action = path.tunnel   ? bl_xdp_tunnel(xdp, &packet, &path)
			 : path.device ? bl_xdp_send(xdp, &packet, &path)
				       : XDP_PASS;
		if (action == XDP_TX || action == XDP_REDIRECT)
			bl_traffic_note(&packet, &path, packet.l4 + packet.l4_len - packet.l3, 1);
		return action;
	case BL_VERDICT_DROPPED:
		return XDP_DROP;
	default:
		return XDP_PASS;
	}
}

/* For a device that faces clients or other nodes. */
SEC("xdp.frags")
int bl_xdp(struct xdp_md *xdp)
{
	return bl_xdp_frame(xdp, true);
}

/* For bonds, and for a device that is below one which faces clients or other nodes. */
SEC("xdp.frags")
int bl_xdp_below(struct xdp_md *xdp)
{
	return bl_xdp_frame(xdp, false);
}

char _license[] SEC("license") = "Dual BSD/GPL";
