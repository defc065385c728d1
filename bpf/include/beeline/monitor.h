/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Events for those who listen. Without listeners they cost one branch at what begins, ends or
 * fails, and packets of established flows nothing. What they cost with listeners is bounded by
 * the limit of each.
 */
#pragma once

#include <beeline/table.h>

static __always_inline struct bl_monitor_entry *bl_monitor_lookup(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&bl_monitor, &zero);
}

/* Whether anybody listens. */
static __always_inline bool bl_monitored(void)
{
	const struct bl_monitor_entry *monitor = bl_monitor_lookup();

	return monitor && unlikely(*(const volatile __u64 *)&monitor->listening);
}

/* Whether @listener, at @place, may have another event in its @slice of time. */
static __always_inline bool bl_monitor_limit(struct bl_monitor_listener *listener,
					     struct bl_monitor_cpu_entry *count, __u64 slice)
{
	__u32 limit = listener->limit;

	if (count->slice != slice) {
		count->slice = slice;
		count->taken = 0;
	}
	if (count->taken >= limit)
		return false;
	/* CPUs that begin the slice at once let through a few more. */
	if (listener->slice != slice) {
		listener->slice = slice;
		listener->taken = 0;
	}
	if (__sync_fetch_and_add(&listener->taken, 1) >= limit) {
		count->taken = limit; /* the line of memory is left to the others */
		return false;
	}
	count->taken++;
	return true;
}

/*
 * Whether the listener at @place is to be told an event of @kind. One whose process has gone
 * without a word is forgotten.
 */
__noinline int bl_monitor_wants(__u32 place, enum bl_event_kind kind)
{
	struct bl_monitor_cpu_entry *count = bpf_map_lookup_elem(&bl_monitor_cpu, &place);
	struct bl_monitor_entry *monitor = bl_monitor_lookup();
	struct bl_monitor_listener *listener;
	__u64 now = bpf_ktime_get_coarse_ns();

	if (!count || !monitor || place >= BL_MONITORS || kind > BL_EVENT_ENDED)
		return false;
	listener = &monitor->listener[place];
	if (!(monitor->listening & 1ULL << place) || !(listener->kinds & 1U << kind))
		return false;
	if ((__s64)(listener->until - now) < 0) {
		__sync_fetch_and_and(&monitor->listening, ~(1ULL << place));
		return false;
	}
	if (listener->sample > 1 && count->seen++ % listener->sample)
		return false;
	if (bl_monitor_limit(listener, count, now >> BL_MONITOR_SHIFT))
		return true;
	count->left_out++;
	return false;
}

/*
 * An event of @kind for the listener at @place, to be filled and submitted; all of it is zero but
 * time and kind. NULL when the listener does not want it or has no room for it.
 */
static __always_inline struct bl_event *bl_event_begin(__u32 place, enum bl_event_kind kind)
{
	struct bl_monitor_cpu_entry *count;
	struct bl_event *event;
	void *ring;

	if (!bl_monitor_wants(place, kind))
		return NULL;
	ring = bpf_map_lookup_elem(&bl_monitor_ring, &place);
	event = ring ? bpf_ringbuf_reserve(ring, sizeof(*event), 0) : NULL;
	if (!event) {
		count = bpf_map_lookup_elem(&bl_monitor_cpu, &place);
		if (count)
			count->left_out++;
		return NULL;
	}
	__builtin_memset(event, 0, sizeof(*event));
	event->time = bpf_ktime_get_ns();
	event->kind = kind;
	return event;
}

/* Note which backend @event is about; one of another @generation is not known any more. */
static __always_inline void bl_event_backend(struct bl_event *event, __u32 id, __u16 generation)
{
	const struct bl_backend_entry *backend = bl_backend_lookup(id);

	event->backend_id = id;
	if (!backend || (__u16)backend->generation != generation)
		return;
	event->service = backend->service;
	event->node = backend->node;
}
