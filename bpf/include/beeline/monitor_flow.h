/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Events of flows. The program that includes this file defines BL_EVENT_HOOK, which of enum
 * bl_event_hook it is.
 */
#pragma once

#include <beeline/device.h>
#include <beeline/monitor.h>
#include <beeline/packet.h>

/* bl_monitor_admit for an event of a client that sends packets of @key; bl_monitor_full comes before. */
static __always_inline __u32 bl_monitor_admit_flow(__u32 what, const struct bl_flow_key *key,
						   __u32 service, const union bl_addr *backend)
{
	__u64 ports = (__u64)key->src_port << 24 | (__u64)key->dst_port << 8 | key->proto;

	return bl_monitor_admit(
		what, bl_hash_final(bl_hash_addr(bl_hash_addr(ports, &key->src), &key->dst)),
		service, &key->src, backend);
}

/*
 * Begin an event, as bl_event_begin does, about a client that sends packets of @key by the device
 * of @ifindex, to @service.
 */
static __always_inline struct bl_event *bl_event_client(__u32 place, const struct bl_flow_key *key,
							__u32 service, __u32 ifindex, __u32 what)
{
	struct bl_event *event = bl_event_begin(place, what);

	if (!event)
		return NULL;
	event->client = key->src;
	event->client_port = key->src_port;
	event->dst = key->dst;
	event->dst_port = key->dst_port;
	event->proto = key->proto;
	event->service = service;
	event->ifindex = ifindex;
	return event;
}

/* Fill in a flow. */
static __always_inline void bl_event_forward(struct bl_event *event,
					     const struct bl_flow_forward *forward)
{
	event->backend = forward->backend;
	event->backend_port = forward->backend_port;
	event->flow = forward->bits;
	event->device = forward->device;
	event->backend_id = forward->backend_id;
	if (event->proto == IPPROTO_TCP) {
		event->client_seq = forward->progress.tcp.client_seq;
		event->backend_seq = forward->progress.tcp.backend_seq;
	}
	if (!(forward->bits & BL_FLOW_SNAT))
		return;
	event->source_port = forward->source.port;
	bl_flow_snat_source(forward, bl_addr_is_ipv4(&event->client), &event->source);
}

/*
 * Tell what @what says by BL_EVENT of a flow whose client sends packets of @key by the device of
 * @ifindex; the rest as of struct bl_event.
 */
static __always_inline void bl_event_flow(const struct bl_flow_key *key,
					  const struct bl_flow_forward *forward, __u32 ifindex,
					  __u32 what, __u32 flows, __u32 seconds)
{
	const struct bl_backend_entry *backend;
	struct bl_event *event;
	__u32 service = ~0U;

	/* What becomes of a masqueraded connection is told of the Service's flow. */
	if (!bl_monitored() || (key->masquerade && (__u8)(what >> 16) != BL_EVENT_DROPPED) ||
	    bl_monitor_full(what))
		return;
	backend = bl_event_backend(forward->backend_id, forward->generation);
	if (backend)
		service = backend->service;
	what = bl_monitor_admit_flow(what, key, service, &forward->backend);
	for (__u32 place = 0; bl_event_waits(what, place); place++) {
		event = bl_event_client(place, key, service, ifindex, what);
		if (!event)
			continue;
		bl_event_forward(event, forward);
		event->node = backend ? backend->node : 0;
		event->flows = flows;
		event->seconds = seconds;
		bpf_ringbuf_submit(event, 0);
	}
}

/*
 * Tell what has become of a flow whose client sends packets of @key by the device of @ifindex.
 * Here and below the check whether anybody listens is in the function, which is verified once.
 */
__noinline int bl_tell_flow(const struct bl_flow_key *key, const struct bl_flow_forward *forward,
			    __u32 ifindex, enum bl_event_kind kind, enum bl_reason reason)
{
	if (key && forward)
		bl_event_flow(key, forward, ifindex, BL_EVENT(kind, BL_EVENT_HOOK, reason), 0, 0);
	return 0;
}

/* Tell that a packet to @service, ~0 when that is not known, is refused or dropped. */
__noinline int bl_tell_packet(const struct bl_packet *packet, __u32 service,
			      enum bl_event_kind kind, enum bl_reason reason)
{
	struct bl_event *event;
	__u32 what = BL_EVENT(kind, BL_EVENT_HOOK, reason);

	if (!packet || !bl_monitored() || bl_monitor_full(what))
		return 0;
	what = bl_monitor_admit_flow(what, &packet->key, service, NULL);
	for (__u32 place = 0; bl_event_waits(what, place); place++) {
		event = bl_event_client(place, &packet->key, service, packet->ifindex, what);
		if (!event)
			continue;
		bpf_ringbuf_submit(event, 0);
	}
	return 0;
}

/* Count a packet that is dropped for @reason. */
static __always_inline void bl_packet_drop(const struct bl_packet *packet, enum bl_reason reason)
{
	bl_count(reason);
	bl_tell_packet(packet, ~0U, BL_EVENT_DROPPED, reason);
}
