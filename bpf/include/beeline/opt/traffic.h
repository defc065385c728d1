/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The packets and bytes of Services and backends: of flows by opt/traffic_packet.h, of the node's own
 * sockets by opt/traffic_sock.h.
 */
#pragma once

#include <beeline/maps.h>

/* One flow in so many has its packets counted, as so many; 0: nothing is counted. */
volatile const __u32 bl_traffic_sampling;

/* Count packets of one direction for a Service or a backend, where there is room. */
static __always_inline void bl_traffic_add(enum bl_traffic_kind kind, __u32 id, bool reply,
					   __u64 bytes, __u64 packets)
{
	struct bl_traffic_key key = {.kind = kind, .id = id};
	struct bl_traffic_entry fresh = {}, *entry = bpf_map_lookup_elem(&bl_traffic, &key);
	struct bl_volume *volume;

	if (!entry) {
		bpf_map_update_elem(&bl_traffic, &key, &fresh, BPF_NOEXIST);
		entry = bpf_map_lookup_elem(&bl_traffic, &key);
		if (!entry)
			return;
	}
	volume = reply ? &entry->to_client : &entry->to_backend;
	/* A packet may interrupt the end of a socket on this CPU. */
	__sync_fetch_and_add(&volume->packets, packets);
	__sync_fetch_and_add(&volume->bytes, bytes);
}
