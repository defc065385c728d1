/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Events for those who listen. Without listeners they cost one branch at what begins, ends or
 * fails, and packets of established flows nothing. What they cost with listeners is bounded by
 * the limit of each.
 */
#pragma once

#include <beeline/clock.h>
#include <beeline/hash.h>
#include <beeline/table.h>

/* For bl_monitor_now. */
static volatile __u64 bl_monitor_clock;

/* The time in the unit of listeners' leases. */
static __always_inline __u32 bl_monitor_now(void)
{
	return bl_clock_units(&bl_monitor_clock, 1ULL << BL_MONITOR_SHIFT);
}

/* Whether @listener, at @place, may have another event in its @slice of time. */
static __always_inline bool bl_monitor_limit(struct bl_monitor_listener *listener,
					     struct bl_monitor_cpu_entry *count, __u32 slice)
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
 * Whether an event of @kind is in the sample of @listener: all of a connection is, by @hash, or
 * nothing, and all of the later kinds, which are of an endpoint or the table.
 */
static __always_inline bool bl_monitor_samples(const struct bl_monitor_listener *listener,
					       enum bl_event_kind kind, __u32 hash)
{
	return listener->sample <= 1 || kind > BL_EVENT_ENDED || !(hash % listener->sample);
}

/*
 * Whether the listener at @place of @monitor is to be told an event of @kind, of a connection with
 * this @hash. One whose process has gone without a word is forgotten.
 */
static __always_inline bool bl_monitor_wants(struct bl_monitor_entry *monitor, __u32 place,
					     enum bl_event_kind kind, __u32 hash, __u32 now)
{
	struct bl_monitor_listener *listener = &monitor->listener[place];
	struct bl_monitor_cpu_entry *count;

	if (!(listener->kinds & 1U << kind) || !bl_monitor_samples(listener, kind, hash))
		return false;
	if ((__s32)((listener->until >> 32) - now) < 0) {
		__sync_fetch_and_and(&monitor->listening, ~(1ULL << place));
		return false;
	}
	count = bpf_map_lookup_elem(&bl_monitor_cpu, &place);
	if (!count)
		return false;
	if (bl_monitor_limit(listener, count, now >> BL_MONITOR_LIMIT_SHIFT))
		return true;
	count->left_out++;
	return false;
}

/*
 * The listeners that are to be told an event of @kind, by bits of their places. @hash is the same for
 * all events of a connection.
 */
__noinline __u32 bl_monitor_admit(enum bl_event_kind kind, __u32 hash)
{
	struct bl_monitor_entry *monitor = bl_value(bl_monitor);
	__u32 now = bl_monitor_now(), wanted = 0;

	if (kind > BL_EVENT_LAST)
		return 0;
	for (__u32 place = 0; place < BL_MONITORS; place++)
		if (monitor->listening >> place & 1 &&
		    bl_monitor_wants(monitor, place, kind, hash, now))
			wanted |= 1U << place;
	return wanted;
}

/* Whether anybody listens. */
static __always_inline bool bl_monitored(void)
{
	return unlikely(*(const volatile __u64 *)&bl_value(bl_monitor)->listening);
}

/* Who is told an event, its kind, its hook and its reason, in one argument. */
#define BL_EVENT(wanted, kind, hook, reason) \
	((wanted) << 24 | (kind) << 16 | (hook) << 8 | (reason))

/* Whether the listener at @place, or one behind it, is to be told @what. */
static __always_inline bool bl_event_waits(__u32 what, __u32 place)
{
	return place < BL_MONITORS && what >> 24 >> place;
}

/*
 * The event that @what says by BL_EVENT, for the listener at @place, to be filled and submitted;
 * the rest of it is zero. NULL when it is not for that one, or there is no room for it.
 */
static __always_inline struct bl_event *bl_event_begin(__u32 place, __u32 what)
{
	struct bl_monitor_cpu_entry *count;
	struct bl_event *event;
	void *ring;

	if (!(what >> 24 & 1U << place))
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
	event->kind = what >> 16;
	event->hook = what >> 8;
	event->reason = what;
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
