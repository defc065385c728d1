/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The hash by which clients find their slot in a ring. Every node computes the same,
 * of either byte order, and so do the tests; a change sends flows elsewhere while
 * nodes differ.
 */
#pragma once

#include <bpf/bpf_endian.h>
#include <beeline/types.h>

static __always_inline __u64 bl_hash_mix(__u64 hash, __u64 word)
{
	hash = (hash ^ word) * 0x9e3779b97f4a7c15ULL;
	return hash ^ hash >> 32;
}

/* Mix in an address, which is BL_ALIGNED. */
static __always_inline __u64 bl_hash_addr(__u64 hash, const union bl_addr *addr)
{
	hash = bl_hash_mix(hash, bpf_be64_to_cpu(((const __u64 *)addr)[0]));
	return bl_hash_mix(hash, bpf_be64_to_cpu(((const __u64 *)addr)[1]));
}

/* The final mix, after which all 32 bits depend on the input. */
static __always_inline __u32 bl_hash_final(__u64 hash)
{
	hash *= 0xff51afd7ed558ccdULL;
	hash ^= hash >> 33;
	hash *= 0xc4ceb9fe1a85ec53ULL;
	return hash >> 32;
}
