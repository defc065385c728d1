/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Devices that face clients or other nodes, and the addresses that SNAT takes from them.
 */
#pragma once

#include <beeline/addr.h>
#include <beeline/maps.h>

static __always_inline const struct bl_device_entry *bl_device_lookup(__u32 id)
{
	return bpf_map_lookup_elem(&bl_device, &id);
}

static __always_inline bool bl_device_has_addr(const struct bl_device_entry *device, bool ipv4)
{
	const __be32 *six = device->addr6.word;

	return ipv4 ? device->addr4 != 0 : (six[0] | six[1] | six[2] | six[3]) != 0;
}

/* The address that SNAT gives packets that leave by @device. Zero when it has none. */
static __always_inline union bl_addr bl_device_addr(const struct bl_device_entry *device, bool ipv4)
{
	union bl_addr addr = {};

	if (!ipv4)
		return device->addr6;
	if (device->addr4)
		bl_addr_set_ipv4(&addr, device->addr4);
	return addr;
}

/*
 * The source that SNAT gives the packets of a flow, by its forward entry. False when
 * its device was never there, or has no address of the family any more.
 */
static __always_inline bool bl_flow_snat_source(const struct bl_flow_forward *forward, bool ipv4,
						union bl_addr *source)
{
	const struct bl_device_entry *device = bl_device_lookup(forward->device);

	if (!device)
		return false;
	*source = bl_device_addr(device, ipv4);
	return bl_device_has_addr(device, ipv4);
}
