// Package devicemap has the devices that packets are served on, as the programs look them up:
// addresses and flags, MAC addresses, VLAN tags, and the ranges of pods behind them. Devices
// that could not be attached to are told to people.
package devicemap
