/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Fragments at tc: all of a datagram take the path of the first one.
 */
#pragma once

#include <beeline/opt/reorder.h>

/*
 * Keep the verdict of the first fragment of a datagram. True when others had come before
 * it, for bl_reorder_release.
 */
__noinline bool bl_tc_keep_verdict(const struct bl_packet *packet, enum bl_hook hook,
				   enum bl_verdict verdict, const struct bl_path *path)
{
	struct bl_fragment_entry entry = {
		.second = bl_flow_now(),
		.verdict = verdict == BL_VERDICT_REFUSED ? BL_VERDICT_DROPPED : verdict,
	};
	const struct bl_fragment_entry *former;
	struct bl_fragment_key key;
	bool overtaken;

	if (!packet || !path)
		return false;
	entry.to = path->to;
	entry.device = path->device;
	entry.back = path->back;
	entry.tunnel = path->tunnel;
	entry.reply = path->reply;
	bl_fragment_key(packet, hook, &key);
	former = bpf_map_lookup_elem(&bl_fragment, &key);
	overtaken = former && former->verdict == BL_VERDICT_UNKNOWN;
	/* The others of one that passes need not wait, where they would. */
	if (verdict != BL_VERDICT_PASSES || overtaken || bl_reorder_wanted(packet))
		bl_fragment_store(&key, &entry);
	else if (former)
		bl_fragment_forget(&key);
	return overtaken && entry.verdict != BL_VERDICT_DROPPED;
}

/*
 * Fill in the verdict of the first fragment of a datagram. False when it is not known. A record that
 * is too old is of another datagram with this id: it goes, for no fragment waits beside one.
 */
static __always_inline bool bl_tc_verdict_known(const struct bl_fragment_key *key,
						struct bl_path *path, enum bl_verdict *verdict)
{
	const struct bl_fragment_entry *entry = bpf_map_lookup_elem(&bl_fragment, key);

	if (!entry || entry->verdict == BL_VERDICT_UNKNOWN)
		return false;
	if (bl_flow_age(bl_flow_now(), entry->second) > BL_FRAGMENT_SECONDS) {
		bl_fragment_forget(key);
		return false;
	}
	path->to = entry->to;
	path->device = entry->device;
	path->back = entry->back;
	path->tunnel = entry->tunnel;
	path->reply = entry->reply;
	*verdict = entry->verdict;
	return true;
}

/* A later fragment: as its first one, when that has come. */
__noinline enum bl_verdict bl_tc_recall_verdict(struct __sk_buff *skb,
						const struct bl_packet *packet, enum bl_hook hook,
						struct bl_path *path)
{
	enum bl_verdict verdict = BL_VERDICT_PASSES;
	struct bl_fragment_key key;

	if (!packet || !path)
		return BL_VERDICT_DROPPED;
	bl_fragment_key(packet, hook, &key);
	if (bl_tc_verdict_known(&key, path, &verdict) || !bl_reorder_wanted(packet))
		return verdict;
	if (bl_reorder_keep(skb, packet, &key))
		return BL_VERDICT_DROPPED;
	bl_tc_verdict_known(&key, path, &verdict);
	return verdict;
}
