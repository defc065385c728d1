// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * What connect() of a TCP socket, or a datagram of an unconnected UDP socket, would meet; see
 * explain.h.
 */
#include <linux/in.h>
#include <beeline/explain.h>

/* A test run has a socket in the network namespace of the thread that asks. */
#define BL_SOCK_CONTEXT __sk_buff

static __always_inline __u64 bl_context_netns(struct __sk_buff *skb)
{
	(void)skb;
	return bl_value(bl_explain)->query.netns;
}

static __always_inline union bl_addr bl_context_source(struct __sk_buff *skb, bool ipv4)
{
	(void)skb;
	(void)ipv4;
	return bl_value(bl_explain)->query.src;
}

#include <beeline/sock_client.h>
#include <beeline/opt/nat.h>

/* The pinned bl_affinity; that name is the copy. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct bl_affinity_key);
	__type(value, struct bl_affinity_entry);
} bl_known_affinity SEC(".maps");

/* Give the answer that the connection is not served for @reason. */
static __always_inline void bl_explain_refuse(struct bl_explain_entry *explain,
					      struct bl_service_stat_entry *stat,
					      enum bl_reason reason)
{
	bl_refuse_count(stat, reason);
	explain->reason = reason;
	explain->verdict = bl_reason_drops(reason) ? BL_VERDICT_DROPPED : BL_VERDICT_REFUSED;
}

/* Choose a backend of @target, and give the answer. */
static __always_inline void bl_explain_balance(struct bl_explain_entry *explain,
					       const struct bl_client *client,
					       const struct bl_dst *dst,
					       const struct bl_target *target)
{
	struct bl_affinity_key key = {
		.netns = explain->query.netns,
		.service = target->frontend.service,
	};
	struct bl_choice choice;

	bl_explain_set(explain, client, target);
	bl_explain_know_stat(target->frontend.service);
	bl_explain_know_client(explain, &bl_known_affinity, &bl_affinity, &key, target);
	choice = bl_service_balance(client, dst, target);
	if (!choice.backend) {
		bl_explain_refuse(explain, target->stat, choice.reason);
		return;
	}
	explain->backend = choice.ref;
	explain->to_dst = choice.backend->addr;
	explain->to_dst_port = choice.backend->port;
	explain->verdict = BL_VERDICT_TRANSLATED;
}

SEC("tc")
int bl_explain_socket(struct __sk_buff *skb)
{
	struct bl_explain_entry *explain = bl_value(bl_explain);
	struct bl_client client = {.ctx = skb, .hook = BL_SOCK_SENDMSG};
	struct bl_target target;
	enum bl_reason reason;
	struct bl_dst dst;

	explain->reason = BL_REASON_COUNT;
	explain->verdict = BL_VERDICT_PASSES;
	if (!bl_sock_served(skb)) {
		explain->steps = BL_EXPLAIN_NOT_SERVED;
		return 0;
	}
	client.ipv4 = explain->query.ipv4;
	dst = bl_explain_dst(&explain->query);
	reason = bl_service_find(&client, &dst, &target);
	explain->frontend = target.frontend;
	if ((target.stat || reason != BL_REASON_COUNT) && bl_nat_leaves(skb, client.ipv4)) {
		explain->steps = BL_EXPLAIN_NOT_SERVED;
		return 0;
	}
	if (reason != BL_REASON_COUNT)
		bl_explain_refuse(explain, target.stat, reason);
	else if (target.stat)
		bl_explain_balance(explain, &client, &dst, &target);
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
