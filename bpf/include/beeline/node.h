/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The nodes of the cluster, and what the tunnel to them takes.
 */
#pragma once

#include <beeline/flow.h>

enum bl_tunnel_limits {
	/* Bytes before the client's packet: IP, UDP and Geneve headers, the option. */
	BL_TUNNEL_SHIM = 8 + 8 + sizeof(struct bl_tunnel_option),
	BL_TUNNEL_IPV4 = sizeof(struct iphdr) + BL_TUNNEL_SHIM,
	BL_TUNNEL_IPV6 = sizeof(struct ipv6hdr) + BL_TUNNEL_SHIM,
	/* Of a device that it leaves by: hosts need not believe in less than 1280 bytes. */
	BL_TUNNEL_MTU_MIN = 1280 + BL_TUNNEL_IPV6,
	/* How long a packet may be on its way from the tunnel to its flow. */
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

static __always_inline bool bl_device_has_addr(const struct bl_device_entry *device, bool ipv4)
{
	const __be32 *six = device->addr6.word;

	return ipv4 ? device->addr4 != 0 : (six[0] | six[1] | six[2] | six[3]) != 0;
}
