/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Outlier detection of packets: a client repeats its SYN, or the backend's first packet has come, which
 * refuses the connection or not. A SYN that comes again goes to another backend, so the first reset
 * of a connection is held back where there is one: the client then repeats its SYN. The tunnel shows
 * no packet of the backend, and its flows stay where they are.
 */
#pragma once

#include <beeline/client.h>
#include <beeline/opt/outlier.h>
#include <beeline/source_port.h>

enum bl_other_search_limits {
	BL_OTHER_SEARCH_SLOTS = 1024, /* that are looked at */
};

/* A search in a set for any backend but one. */
struct bl_other_search {
	__u64 set;
	__u32 place; /* as of bl_least_slot */
	__u32 but; /* id */
	__u64 found; /* by bl_ref_word */
};

/* Callback of bpf_loop: look at one slot. Returns 1 to stop. */
static long bl_other_look(__u32 index, void *arg)
{
	struct bl_other_search *search = arg;
	const __u32 *id = bl_least_slot(search->set, search->place, index);
	const struct bl_backend_entry *backend = id ? bl_backend_lookup(*id) : NULL;

	if (!backend || *id == search->but || !backend->weight)
		return 0;
	search->found =
		bl_ref_word((struct bl_backend_ref){.id = *id, .generation = backend->generation});
	return 1;
}

/* A backend of @set at random, but not the one of the id @but: by bl_ref_word, BL_NO_REF for none. */
__noinline __u64 bl_set_other(__u64 set, __u32 but)
{
	struct bl_other_search search = {
		.set = set, .place = bpf_get_prandom_u32(), .but = but, .found = BL_NO_REF};
	__u32 count = bl_set_count(set);

	if (bl_set_kind(set) == BL_SET_BACKENDS)
		bpf_loop(count < BL_OTHER_SEARCH_SLOTS ? count : BL_OTHER_SEARCH_SLOTS,
			 bl_other_look, &search, 0);
	return search.found;
}

/* Whether the Service of a backend asks for outlier detection. */
static __always_inline bool bl_outlier_asked(__u32 id)
{
	const struct bl_backend_entry *backend = bl_backend_lookup(id);
	const struct bl_service_entry *service =
		backend ? bl_service_lookup(backend->service) : NULL;

	return service && service->outliers;
}

/*
 * A SYN of the client in a flow. True when it has come before, and no backend has answered it, or one by
 * a reset that was held back: it then begins the flow anew, see bl_plan_again.
 */
__noinline bool bl_outlier_client(const struct bl_packet *packet,
				  const struct bl_flow_forward *forward)
{
	struct bl_flow_work *work = bl_flow_work_lookup();
	enum bl_flow_state state;
	bool silent;

	if (!packet || !forward || !work)
		return false;
	state = bl_flow_state(forward->bits);
	silent = state == BL_FLOW_NEW && forward->used != bl_flow_now();
	if (silent)
		bl_outlier_note(forward->backend_id, forward->generation, 0xffff, true);
	if (!(silent || state == BL_FLOW_ABORTED) || forward->bits & BL_FLOW_TUNNEL ||
	    packet->seq + 1 != forward->progress.tcp.client_seq ||
	    (packet->tcp_flags & (BL_TCP_SYN | BL_TCP_ACK | BL_TCP_RST)) != BL_TCP_SYN ||
	    !bl_outlier_asked(forward->backend_id))
		return false;
	work->again.seq = packet->seq;
	work->again.but = forward->backend_id + 1;
	work->again.refused = state == BL_FLOW_ABORTED || forward->progress.tcp.refused;
	return true;
}

/*
 * Give a new flow whose backend has been chosen, from the set that @member names, another one if
 * that is the one that has not answered the SYN, and if there is one.
 */
__noinline int bl_plan_again(const struct bl_packet *packet, struct bl_plan *plan, __u32 member)
{
	struct bl_flow_work *work = bl_flow_work_lookup();
	const struct bl_backend_entry *backend;
	const struct bl_service_entry *service;
	__u64 other;
	__u32 but;

	if (!packet || !plan || !work || !work->again.but || work->again.seq != packet->seq)
		return 0;
	but = work->again.but - 1;
	work->again.but = 0;
	plan->refused = work->again.refused;
	backend = but == plan->ref.id ? bl_backend_lookup(but) : NULL;
	service = backend ? bl_service_lookup(backend->service) : NULL;
	if (!service)
		return 0;
	other = bl_set_other(bl_service_set(service, member == BL_BACKEND_LOCAL, &member), but);
	if (other == BL_NO_REF)
		return 0;
	if (plan->counted)
		bl_active_drop(but, plan->ref.generation, BL_ACTIVE_FLOWS);
	plan->ref = bl_ref_of(other);
	plan->counted = bl_algorithm_counts(service->algorithm) &&
			bl_active_add(plan->ref.id, plan->ref.generation, BL_ACTIVE_FLOWS);
	return 0;
}

/* Whether the client of a flow would get another backend. */
static __always_inline bool bl_outlier_has_other(const struct bl_flow_key *key,
						 const struct bl_flow_forward *forward,
						 const struct bl_flow_reply *reply)
{
	struct bl_frontend_entry frontend = bl_frontend_of(key);
	const struct bl_service_entry *service;
	struct bl_client client = {};
	__u32 member;

	service = frontend.kind == BL_FRONTEND_NONE ? NULL : bl_service_lookup(frontend.service);
	if (!service || !service->outliers)
		return false;
	/* As in bl_plan_balance: only what comes in from outside has a device. */
	client.internal = reply->bits & BL_FLOW_POD || !reply->device ||
			  reply->device == BL_DEVICE_HAIRPIN ||
			  bl_packet_internal(frontend, reply->device);
	return bl_set_other(
		       bl_service_set(service, frontend.flags & bl_client_policy(&client), &member),
		       forward->backend_id) != BL_NO_REF;
}

/*
 * The first packet of a flow's backend. True when it is a reset that is held back: the first that
 * answers the client's SYN. It answers that as the client would see it; another one changes nothing.
 */
__noinline bool bl_outlier_reply(const struct bl_packet *packet, const struct bl_flow_reply *reply)
{
	struct bl_flow_forward *forward;
	enum bl_flow_state state;
	struct bl_flow_entry *flow;
	struct bl_flow_key key;

	if (!packet || !reply)
		return false;
	bl_flow_forward_key(&packet->key, reply, &key);
	flow = bl_flow_find(&key);
	if (!bl_flow_owns_forward(&packet->key, flow))
		return false;
	forward = &flow->forward;
	bl_outlier_note(forward->backend_id, forward->generation, 0xffff,
			packet->tcp_flags & BL_TCP_RST);
	state = bl_flow_state(forward->bits);
	/* Aborted: the same reset, twice. */
	if (!(packet->tcp_flags & BL_TCP_RST) || reply->bits & BL_FLOW_TUNNEL ||
	    (state != BL_FLOW_NEW && state != BL_FLOW_ABORTED) || forward->progress.tcp.refused ||
	    !bl_flow_near(packet->ack, forward->progress.tcp.client_seq) ||
	    !bl_outlier_has_other(&key, forward, reply))
		return false;
	bl_flow_enter(forward, BL_FLOW_ABORTED);
	bl_count(BL_REASON_RESET_HELD);
	bl_tell_flow(&key, forward, packet->ifindex, BL_EVENT_DROPPED, BL_REASON_RESET_HELD);
	return true;
}
