/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The nodes of the cluster, and the overhead of the tunnel to them.
 */
#pragma once

#include <beeline/flow_table.h>

enum bl_tunnel_limits {
	/* Bytes before the client's packet: IP, UDP and Geneve headers, the option. */
	BL_TUNNEL_SHIM = 8 + 8 + sizeof(struct bl_tunnel_option),
	BL_TUNNEL_IPV4 = sizeof(struct iphdr) + BL_TUNNEL_SHIM,
	BL_TUNNEL_IPV6 = sizeof(struct ipv6hdr) + BL_TUNNEL_SHIM,
	/* Of a device that it leaves by: hosts need not believe in less than 1280 bytes. */
	BL_TUNNEL_MTU_MIN = 1280 + BL_TUNNEL_IPV6,
	/* How long a packet may take from the tunnel to its flow. */
	BL_TUNNEL_SECONDS = 2,
};

static __always_inline const struct bl_node_entry *bl_node_lookup(__u32 id)
{
	return bpf_map_lookup_elem(&bl_node, &id);
}

/* Index in bl_node of the node with an address, 0 for none. */
static __always_inline __u32 bl_node_of(const union bl_addr *addr)
{
	union bl_addr key BL_ALIGNED = *addr;
	const __u32 *id = bpf_map_lookup_elem(&bl_node_id, &key);

	return id ? *id : 0;
}

/* Whether an address is one of this node. */
static __always_inline bool bl_node_is_self(const union bl_addr *addr)
{
	const struct bl_node_entry *node = bl_node_lookup(bl_node_of(addr));

	return node && node->flags & BL_NODE_SELF;
}

/* Whether an address is one of another node of the cluster. Of none, the entry is there, too. */
static __always_inline bool bl_node_is_other(const union bl_addr *addr)
{
	__u32 id = bl_node_of(addr);
	const struct bl_node_entry *node = id ? bl_node_lookup(id) : NULL;

	return node && !(node->flags & BL_NODE_SELF);
}

/*
 * Find the source of this node's packets that @device takes to the other end of the tunnel: other nodes
 * accept those of the addresses alone that its Node lists. Of the family in which the tunnel to
 * this node ends it is that end, else the device's address. False when that is not listed.
 */
static __always_inline bool bl_tunnel_source(const struct bl_device_entry *device, bool ipv4,
					     union bl_addr *source)
{
	const struct bl_node_entry *none = bl_node_lookup(0);
	__u32 id = none ? none->answer : 0;
	const struct bl_node_entry *self = id ? bl_node_lookup(id) : NULL;

	if (self && bl_addr_is_ipv4(&self->addr) == ipv4) {
		*source = self->addr;
		return true;
	}
	*source = bl_device_addr(device, ipv4);
	return bl_device_has_addr(device, ipv4) && bl_node_is_self(source);
}
