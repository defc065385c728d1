/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The packets and bytes of clients outside of the node's sockets: of a sample of the flows, so that
 * those of others cost a hash.
 */
#pragma once

#include <beeline/flow_table.h>
#include <beeline/frontend.h>
#include <beeline/hash.h>
#include <beeline/opt/traffic.h>
#include <beeline/path.h>

/* Whether the flow of a client is in the sample, which both directions tell alike. */
static __always_inline bool bl_traffic_sampled(const union bl_addr *client, __be16 port)
{
	__u64 hash = bl_hash_mix(bl_seed, (__u64)client->word[3] << 16 | port);

	return (hash >> 32) * bl_traffic_sampling >> 32 == 0;
}

/*
 * Count packets of a flow in the sample: for its Service and, while its backend is one of that,
 * for the backend. With the tunnel, a client's packets are counted where they came in.
 */
static __noinline void bl_traffic_count(const struct bl_packet *packet, const struct bl_path *path,
					__u64 bytes, __u64 packets)
{
	struct bl_flow_key key = packet->key;
	struct bl_frontend_entry frontend;
	const struct bl_flow_entry *flow;

	if (path->reply) {
		key.src = path->to.dst;
		key.dst = path->to.src;
		key.src_port = path->to.dst_port;
		key.dst_port = path->to.src_port;
	}
	flow = bl_flow_find(&key);
	if (!flow || bl_flow_bits(flow) & BL_FLOW_IS_REPLY ||
	    (!path->reply && bl_flow_comes_by_tunnel(&flow->forward)))
		return;
	bytes *= bl_traffic_sampling;
	packets *= bl_traffic_sampling;
	if (bl_flow_serving(&flow->forward))
		bl_traffic_add(BL_TRAFFIC_BACKEND, flow->forward.backend_id, path->reply, bytes,
			       packets);
	frontend = bl_frontend_of(&key);
	if (frontend.kind != BL_FRONTEND_NONE)
		bl_traffic_add(BL_TRAFFIC_SERVICE, frontend.service, path->reply, bytes, packets);
}

/*
 * Count a translated packet, in which the kernel may have put so many together. A datagram that
 * comes in fragments has ports in the first alone.
 */
static __always_inline void bl_traffic_note(const struct bl_packet *packet,
					    const struct bl_path *path, __u64 bytes, __u64 packets)
{
	const struct bl_rewrite *to = &path->to;

	if (bl_traffic_sampling && packet->part != BL_PACKET_LATER &&
	    bl_traffic_sampled(path->reply ? &to->dst : &packet->key.src,
			       path->reply ? to->dst_port : packet->key.src_port))
		bl_traffic_count(packet, path, bytes, packets);
}
