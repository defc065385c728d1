/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Where in its set a Service picks the backend of a packet's flow.
 */
#pragma once

#include <beeline/packet.h>
#include <beeline/select.h>

/*
 * A number spread over 32 bits by what the packet tells, for the algorithms that hash.
 * A client with affinity counts with all of its ports, so that nodes which do not
 * know of it agree.
 */
static __always_inline __u32 bl_packet_hash(const struct bl_packet *packet, __u16 algorithm,
					    bool affinity)
{
	if (algorithm == BL_ALGORITHM_DESTINATION_HASH)
		return bl_hash_spread(bl_hash_addr(0, &packet->key.dst));
	if (algorithm == BL_ALGORITHM_SOURCE_HASH || affinity)
		return bl_hash_spread(bl_hash_addr(0, &packet->key.src));
	return bl_hash_spread(bl_hash_mix(
		bl_hash_addr(bl_hash_addr(0, &packet->key.src), &packet->key.dst),
		(__u64)packet->key.proto << 32 | (__u32)bpf_ntohs(packet->key.src_port) << 16 |
			bpf_ntohs(packet->key.dst_port)));
}

/* The number by which @service picks a slot of @set for a new flow. */
static __always_inline __u32 bl_packet_spread(const struct bl_packet *packet,
					      const struct bl_service_entry *service,
					      const struct bl_service_stat_entry *stat, __u32 id,
					      __u64 set)
{
	switch (service->algorithm) {
	case BL_ALGORITHM_RANDOM:
		return bl_random(stat, id);
	case BL_ALGORITHM_ROUND_ROBIN:
	case BL_ALGORITHM_WEIGHTED_ROUND_ROBIN:
		return bl_turn(stat, id, set);
	}
	return bl_packet_hash(packet, service->algorithm, service->affinity);
}
