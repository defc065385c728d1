/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Frames as XDP gets them that belong to another device than the one whose driver runs
 * the program: those with tags to a device of a VLAN, and those of a port to its bond.
 */
#pragma once

#include <linux/if_ether.h>
#include <beeline/packet.h>

enum bl_vlan_bits {
	BL_VLAN_ID = 0x0fff, /* of the second half of a tag, host byte order */
	BL_VLAN_PRIORITY = 0xf000,
	/* From an Ethernet header to the next one with tags. */
	BL_VLAN_HEADERS_MAX = sizeof(struct ethhdr) + BL_TAGS * sizeof(struct bl_tag),
};

/* An Ethernet header with as many tags as there may be. One with fewer ends earlier. */
struct bl_vlan_header {
	__u8 macs[2 * ETH_ALEN];
	struct bl_tag tag[BL_TAGS]; /* with priority */
	__be16 protocol;
	__u8 pad[2];
};
_Static_assert(offsetof(struct bl_vlan_header, pad) == BL_VLAN_HEADERS_MAX, "bl_vlan_header");

static __always_inline bool bl_vlan_tagged(__be16 protocol)
{
	return protocol == bpf_htons(ETH_P_8021Q) || protocol == bpf_htons(ETH_P_8021AD);
}

static __always_inline struct bl_tag bl_vlan_tag(struct bl_tag tag)
{
	tag.id &= bpf_htons(BL_VLAN_ID);
	return tag;
}

/* Whether the packet is one of a device that is served. If so, it is taken for that one's. */
static __always_inline bool bl_vlan_enter(const struct bl_vlan_key *key, struct bl_packet *packet)
{
	const __u32 *id = bpf_map_lookup_elem(&bl_vlan, key);
	const struct bl_device_entry *device = id ? bl_device_lookup(*id) : NULL;

	if (!device)
		return false;
	packet->ifindex = device->ifindex;
	return device->ifindex != 0;
}

/*
 * Read the headers of a frame with tags that came in by the device @ifindex, as
 * bl_packet_plain does those of others. One with a priority alone belongs to the device
 * itself, which is @served or not. False when the frame is left to tc.
 */
static __noinline bool bl_vlan_plain(struct xdp_md *xdp, struct bl_packet *packet, bool served)
{
	void *data = (void *)(long)xdp->data, *end = (void *)(long)xdp->data_end;
	struct bl_vlan_key key = {.ifindex = xdp->ingress_ifindex};
	const struct bl_vlan_header *header = data;

	if ((void *)(header + 1) > end || !bl_vlan_tagged(header->tag[0].protocol))
		return false;
	key.tag[0] = bl_vlan_tag(header->tag[0]);
	if (bl_vlan_tagged(header->tag[1].protocol)) {
		key.tag[1] = bl_vlan_tag(header->tag[1]);
		return bl_packet_plain(data, end, BL_VLAN_HEADERS_MAX, header->protocol, packet) &&
		       bl_vlan_enter(&key, packet);
	}
	if (!bl_packet_plain(data, end, sizeof(struct ethhdr) + sizeof(struct bl_tag),
			     header->tag[1].protocol, packet))
		return false;
	if (!key.tag[0].id) {
		key.tag[0].protocol = 0;
		if (served)
			return true;
	}
	return bl_vlan_enter(&key, packet);
}

/* The length of the Ethernet header of frames that leave by @device. */
static __always_inline __u32 bl_vlan_len(const struct bl_device_entry *device)
{
	__u32 len = sizeof(struct ethhdr);

	if (device->tag[0].protocol)
		len += sizeof(struct bl_tag);
	if (device->tag[1].protocol)
		len += sizeof(struct bl_tag);
	return len;
}

/*
 * Give the frame of @packet an Ethernet header as it has at @device, but for the
 * addresses. A tag keeps the priority of the one in its place. Returns the length of the
 * header; 0 when there is no room for it: then nothing has changed.
 */
static __noinline __u32 bl_vlan_leave(struct xdp_md *xdp, const struct bl_packet *packet,
				      const struct bl_device_entry *device)
{
	struct bl_vlan_header *header = (void *)(long)xdp->data;
	__u32 len = bl_vlan_len(device);
	__be16 priority[BL_TAGS] = {};
	__be16 protocol = packet->ipv4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);

	if ((void *)(header + 1) > (void *)(long)xdp->data_end)
		return 0;
	if (packet->l3 > sizeof(struct ethhdr))
		priority[0] = header->tag[0].id & bpf_htons(BL_VLAN_PRIORITY);
	if (packet->l3 == BL_VLAN_HEADERS_MAX)
		priority[1] = header->tag[1].id & bpf_htons(BL_VLAN_PRIORITY);
	if (packet->l3 != len && bpf_xdp_adjust_head(xdp, (int)(packet->l3 - len)))
		return 0;
	header = (void *)(long)xdp->data;
	if ((void *)(header + 1) > (void *)(long)xdp->data_end)
		return 0;
	if (len == sizeof(struct ethhdr)) {
		((struct ethhdr *)header)->h_proto = protocol;
		return len;
	}
	header->tag[0].protocol = device->tag[0].protocol;
	header->tag[0].id = device->tag[0].id | priority[0];
	if (len != BL_VLAN_HEADERS_MAX) {
		header->tag[1].protocol = protocol;
		return len;
	}
	header->tag[1].protocol = device->tag[1].protocol;
	header->tag[1].id = device->tag[1].id | priority[1];
	header->protocol = protocol;
	return len;
}
