/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Events of flows. The program that includes this file defines BL_EVENT_HOOK, which of enum
 * bl_event_hook it is.
 */
#pragma once

#include <beeline/monitor.h>
#include <beeline/source_port.h>

/* Kind and reason of an event in one argument. */
#define BL_EVENT(kind, reason) ((kind) << 8 | (reason))

/*
 * Begin an event for the listener at @place about a client that sends packets of @key by the
 * device of @ifindex. @what is by BL_EVENT. NULL as of bl_event_begin.
 */
static __always_inline struct bl_event *bl_event_client(__u32 place, const struct bl_flow_key *key,
							__u32 ifindex, __u32 what)
{
	struct bl_event *event = bl_event_begin(place, what >> 8);

	if (!event)
		return NULL;
	event->hook = BL_EVENT_HOOK;
	event->reason = what;
	event->client = key->src;
	event->client_port = key->src_port;
	event->dst = key->dst;
	event->dst_port = key->dst_port;
	event->proto = key->proto;
	event->service = ~0U;
	event->ifindex = ifindex;
	return event;
}

/* Fill in a flow. The key of its reply entry is at hand while it begins. */
static __always_inline void bl_event_forward(struct bl_event *event,
					     const struct bl_flow_forward *forward)
{
	const struct bl_flow_work *work = bl_flow_work_lookup();

	event->backend = forward->backend;
	event->backend_port = forward->backend_port;
	event->flow = forward->bits;
	event->device = forward->device;
	bl_event_backend(event, forward->backend_id, forward->generation);
	if (event->proto == IPPROTO_TCP) {
		event->client_seq = forward->progress.tcp.client_seq;
		event->backend_seq = forward->progress.tcp.backend_seq;
	}
	if (!(forward->bits & BL_FLOW_SNAT))
		return;
	event->source_port = forward->source.port;
	if (work && event->kind == BL_EVENT_CONNECTION)
		event->source = work->key.dst;
}

/* Tell of a flow; the arguments are as of bl_event_client. */
__noinline int bl_event_flow(const struct bl_flow_key *key, const struct bl_flow_forward *forward,
			     __u32 ifindex, __u32 what)
{
	struct bl_event *event;

	if (!key || !forward)
		return 0;
	for (__u32 place = 0; place < BL_MONITORS; place++) {
		event = bl_event_client(place, key, ifindex, what);
		if (!event)
			continue;
		bl_event_forward(event, forward);
		bpf_ringbuf_submit(event, 0);
	}
	return 0;
}

/* Tell of a packet that is not served; the arguments are as of bl_event_client. */
__noinline int bl_event_packet(const struct bl_flow_key *key, __u32 service, __u32 ifindex,
			       __u32 what)
{
	struct bl_event *event;

	if (!key)
		return 0;
	for (__u32 place = 0; place < BL_MONITORS; place++) {
		event = bl_event_client(place, key, ifindex, what);
		if (!event)
			continue;
		event->service = service;
		bpf_ringbuf_submit(event, 0);
	}
	return 0;
}

/* Count a packet that is dropped for @reason. */
static __always_inline void bl_packet_drop(const struct bl_packet *packet, enum bl_reason reason)
{
	bl_count(reason);
	if (bl_monitored())
		bl_event_packet(&packet->key, ~0U, packet->ifindex,
				BL_EVENT(BL_EVENT_DROPPED, reason));
}
