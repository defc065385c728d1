/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The packets and bytes of Services and backends: of flows by opt/traffic_packet.h, of the node's own
 * sockets by opt/traffic_sock.h.
 */
#pragma once

#include <beeline/maps.h>

/* One flow in so many has its packets counted, as so many; 0: nothing is counted. */
volatile const __u32 bl_traffic_sampling;

/* A socket may be counted while a packet interrupts that on this CPU. */
static __always_inline void bl_volume_add(struct bl_volume *volume, __u64 packets, __u64 bytes)
{
	__sync_fetch_and_add(&volume->packets, packets);
	__sync_fetch_and_add(&volume->bytes, bytes);
}

/* What is counted of a Service or a backend; NULL when there is no room. */
static __always_inline struct bl_traffic_entry *bl_traffic_of(enum bl_traffic_kind kind, __u32 id)
{
	struct bl_traffic_key key = {.kind = kind, .id = id};
	struct bl_traffic_entry fresh = {}, *entry = bpf_map_lookup_elem(&bl_traffic, &key);

	if (entry)
		return entry;
	bpf_map_update_elem(&bl_traffic, &key, &fresh, BPF_NOEXIST);
	return bpf_map_lookup_elem(&bl_traffic, &key);
}
