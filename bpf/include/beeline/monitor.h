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

/* The same as it was when bl_monitor_now was asked last. */
static __always_inline __u32 bl_monitor_asked(void)
{
	return bl_monitor_clock;
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
 * The range of addresses that has @addr and a prefix of so many @bits, v4-mapped: the bits, and below
 * them 24 bits of a hash. A listener has not the room for a prefix, and looks again at what it reads.
 * Without branches, each of which the verifier would follow.
 */
static __always_inline __u32 bl_monitor_range(const union bl_addr *addr, __u32 bits)
{
	__u64 some = ~0ULL << 1 << (63 - (bits & 63)); /* of one half */
	__u64 above = -(__u64)(bits >> 6 & 1), all = -(__u64)(bits >> 7);
	__u64 high = bpf_be64_to_cpu(((const __u64 *)addr)[0]) & (some | above | all);
	__u64 low = bpf_be64_to_cpu(((const __u64 *)addr)[1]) & ((some & above) | all);

	return bits << 24 | bl_hash_final(bl_hash_mix(bl_hash_mix(0, high), low)) >> 8;
}

/* Whether @range has @addr; NULL is not known. */
static __always_inline bool bl_monitor_has_addr(__u32 range, const union bl_addr *addr)
{
	return !range || (addr && bl_monitor_range(addr, range >> 24) == range);
}

/*
 * Whether @range has the client of an event of @kind. That of a socket's connection may be known at its
 * end only, or from its beginning.
 */
static __always_inline bool bl_monitor_has_client(__u32 range, enum bl_event_kind kind,
						  const union bl_addr *client)
{
	if (kind != BL_EVENT_REFUSED && kind != BL_EVENT_DROPPED && (!client || !client->word[3]))
		return true;
	return bl_monitor_has_addr(range, client);
}

/*
 * Whether @listener has chosen @service. That of a port which the Service does not declare is looked up
 * when the event is read.
 */
static __always_inline bool bl_monitor_has_service(const struct bl_monitor_listener *listener,
						   __u32 service, enum bl_reason reason)
{
	const struct bl_monitor_services *some = listener->services;

	if (service == ~0U && reason == BL_REASON_UNDECLARED_PORT)
		return true;
	return (!some[0].end && !some[1].end) ||
	       (service >= some[0].first && service < some[0].end) ||
	       (service >= some[1].first && service < some[1].end);
}

/* Whether @listener wants to be told @what, an event by BL_EVENT; the rest as of bl_monitor_admit. */
static __always_inline bool bl_monitor_wants(const struct bl_monitor_listener *listener, __u32 what,
					     __u32 hash, __u32 service, const union bl_addr *client,
					     const union bl_addr *backend)
{
	enum bl_event_kind kind = (__u8)(what >> 16);
	enum bl_reason reason = (__u8)what;

	if (!(listener->kinds & 1U << kind) || !bl_monitor_samples(listener, kind, hash))
		return false;
	/* The later kinds are of an endpoint or the table, and few. */
	if (kind > BL_EVENT_ENDED || listener->filtered != (__u32)listener->until)
		return true;
	return (!listener->reasons || listener->reasons >> (reason & 63) & 1) &&
	       bl_monitor_has_service(listener, service, reason) &&
	       bl_monitor_has_client(listener->client, kind, client) &&
	       bl_monitor_has_addr(listener->backend, backend);
}

/* Whether @place has a listener. */
static __always_inline bool bl_monitor_taken(__u32 place)
{
	return bl_value(bl_monitor)->listening >> place & 1;
}

/* Forget the listener at @place if its process has gone without a word. */
static __always_inline void bl_monitor_forget(__u32 place, __u32 now)
{
	struct bl_monitor_entry *monitor = bl_value(bl_monitor);

	if (bl_monitor_taken(place) && (__s32)((monitor->listener[place].until >> 32) - now) < 0)
		__sync_fetch_and_and(&monitor->listening, ~(1ULL << place));
}

/* Note that @listener, which is at @place, gets no more events in @slice, if it wants all of its kinds. */
static __always_inline void bl_monitor_note_full(const struct bl_monitor_listener *listener,
						 __u32 place, __u32 slice)
{
	struct bl_monitor_entry *monitor = bl_value(bl_monitor);
	__u64 full = monitor->full, bit = 1ULL << (place & 31);

	if (listener->sample > 1 || listener->filtered == (__u32)listener->until)
		return;
	if (full >> 32 != slice)
		full = (__u64)slice << 32;
	/* A bit that another CPU loses by this is set by its next event. */
	if (!(full & bit))
		monitor->full = full | bit;
}

/* Whether the listener at @place of @monitor may have another event. */
static __always_inline bool bl_monitor_limit(struct bl_monitor_entry *monitor, __u32 place,
					     __u32 slice)
{
	struct bl_monitor_listener *listener = &monitor->listener[place];
	struct bl_monitor_cpu_entry *count = bpf_map_lookup_elem(&bl_monitor_cpu, &place);
	__u32 limit = listener->limit;

	if (!count)
		return false;
	if (count->slice != slice) {
		count->slice = slice;
		count->taken = 0;
	}
	if (count->taken >= limit)
		goto left_out;
	/* CPUs that begin the slice at once let through a few more. */
	if (listener->slice != slice) {
		listener->slice = slice;
		listener->taken = 0;
	}
	if (__sync_fetch_and_add(&listener->taken, 1) >= limit) {
		count->taken = limit; /* the line of memory is left to the others */
		goto left_out;
	}
	count->taken++;
	return true;
left_out:
	count->left_out++;
	bl_monitor_note_full(listener, place, slice);
	return false;
}

/* Who is told an event, in its word by BL_EVENT: the listeners' places, by bits. */
#define BL_EVENT_TO(places) ((places) << 24)

/*
 * Whether the listener at the place in the upper byte of @what, an event by BL_EVENT, is to be told it; the
 * rest as of bl_monitor_admit. Not inline: so the verifier checks one listener, not each.
 */
__noinline bool bl_monitor_admit_at(__u32 what, __u32 hash, __u32 service,
				    const union bl_addr *client, const union bl_addr *backend)
{
	struct bl_monitor_entry *monitor = bl_value(bl_monitor);
	__u32 place = what >> 24 & (BL_MONITORS - 1);

	return bl_monitor_taken(place) &&
	       bl_monitor_wants(&monitor->listener[place], what, hash, service, client, backend) &&
	       bl_monitor_limit(monitor, place, bl_monitor_asked() >> BL_MONITOR_LIMIT_SHIFT);
}

/* Keys of bl_monitor_cpu, for who has no room for one on its stack. */
static const volatile __u32 bl_monitor_places[BL_MONITORS] = {0, 1, 2, 3};

/* Count @what, an event by BL_EVENT, as left out for the listener at @place if it wants that. */
static __always_inline void bl_monitor_leave_out(__u32 place, __u32 what)
{
	__u32 kinds = bl_value(bl_monitor)->listener[place].kinds;
	struct bl_monitor_cpu_entry *count;

	if (!bl_monitor_taken(place) || !(kinds >> (what >> 16 & 31) & 1))
		return;
	count = bpf_map_lookup_elem(&bl_monitor_cpu, (const void *)&bl_monitor_places[place]);
	if (count)
		count->left_out++;
}

/* Forget listeners that have gone without a word; whether one is left. Not inline: few events ask. */
__noinline bool bl_monitor_left(__u32 now)
{
	for (__u32 place = 0; place < BL_MONITORS; place++)
		bl_monitor_forget(place, now);
	return bl_value(bl_monitor)->listening;
}

/*
 * Whether nobody is to be told @what, an event by BL_EVENT: asked once before bl_monitor_admit. It is counted
 * as left out when all who listen have had as much as they may.
 */
static __always_inline bool bl_monitor_full(__u32 what)
{
	struct bl_monitor_entry *monitor = bl_value(bl_monitor);
	__u32 now = bl_monitor_now();
	__u64 full = monitor->full;

	_Static_assert(BL_MONITORS == 4, "listeners");
	if (full >> 32 != now >> BL_MONITOR_LIMIT_SHIFT || monitor->listening & ~(__u64)(__u32)full)
		return !bl_monitor_left(now);
	bl_monitor_leave_out(0, what);
	bl_monitor_leave_out(1, what);
	bl_monitor_leave_out(2, what);
	bl_monitor_leave_out(3, what);
	return true;
}

/*
 * Add to @what, an event by BL_EVENT, the listeners that are to be told it. @hash is the same for all
 * events of a connection. The event has @service, @client and @backend; not known are ~0 and NULL.
 */
static __always_inline __u32 bl_monitor_admit(__u32 what, __u32 hash, __u32 service,
					      const union bl_addr *client,
					      const union bl_addr *backend)
{
	__u32 wanted = 0; /* told by no branch, of which the verifier would follow each outcome */

	if ((__u8)(what >> 16) > BL_EVENT_LAST)
		return 0;
	for (__u32 place = 0; place < BL_MONITORS; place++)
		wanted |= (__u32)bl_monitor_admit_at(BL_EVENT_TO(place) | what, hash, service,
						     client, backend)
			  << place;
	return BL_EVENT_TO(wanted) | what;
}

/* Whether anybody listens. */
static __always_inline bool bl_monitored(void)
{
	return unlikely(*(const volatile __u64 *)&bl_value(bl_monitor)->listening);
}

/* The kind of an event, its hook and its reason, in one argument; bl_monitor_admit adds who is told it. */
#define BL_EVENT(kind, hook, reason) ((kind) << 16 | (hook) << 8 | (reason))

/* Whether the listener at @place, or one behind it, is to be told @what. */
static __always_inline bool bl_event_waits(__u32 what, __u32 place)
{
	return place < BL_MONITORS && what >> 24 >> place;
}

/*
 * The event that @what says, by bl_monitor_admit, for the listener at @place, to be filled and submitted;
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

/* The backend by its id; one of another @generation is not known any more: NULL. */
static __always_inline const struct bl_backend_entry *bl_event_backend(__u32 id, __u16 generation)
{
	const struct bl_backend_entry *backend = bl_backend_lookup(id);

	return backend && (__u16)backend->generation == generation ? backend : NULL;
}
