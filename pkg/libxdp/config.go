package libxdp

import (
	"encoding/binary"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// magic is the first byte of a dispatcher's settings, which that of version 1 has not.
const magic = 'X' + 'D' + 'P'

// configSizes are how many bytes the settings are, by version: 3, of libxdp 1.6, has a byte
// more (and padding) that says that the programs are bound to the device.
var configSizes = map[uint8]int{2: 124, 3: 128}

// load loads a dispatcher for these programs.
func load(version uint8, components []Component) (*ebpf.Program, error) {
	spec, err := loadDispatcher()
	if err != nil {
		return nil, err
	}
	var config dispatcherConfig
	variable := spec.Variables[dispatcherVarConfig]
	if err := variable.Get(&config); err != nil {
		return nil, err
	}
	if len(components) > len(config.Next) {
		return nil, ForeignError{"no room for one more"}
	}
	config.Magic, config.Version = magic, version
	config.Count, config.Frags = uint8(len(components)), 1
	for i, c := range components {
		config.Next[i] |= c.Next
		config.Priority[i], config.Flags[i] = c.Priority, c.Flags
		if c.Flags&unix.BPF_F_XDP_HAS_FRAGS == 0 {
			config.Frags = 0
		}
	}
	if err := variable.Set(config); err != nil {
		return nil, err
	}
	data := spec.Maps[variable.SectionName]
	data.Key, data.Value, data.ValueSize = nil, nil, uint32(configSizes[version])
	data.Contents = []ebpf.MapKV{{Key: uint32(0), Value: make([]byte, data.ValueSize)}}
	if config.Frags != 0 {
		spec.Programs[dispatcherProgXdpDispatcher].Flags |= unix.BPF_F_XDP_HAS_FRAGS
	}
	var programs dispatcherPrograms
	if err := spec.LoadAndAssign(&programs, nil); err != nil {
		return nil, fmt.Errorf("load a dispatcher: %w", err)
	}
	return programs.XdpDispatcher, nil
}

// functionName returns the name of the function that the program in a slot replaces.
func functionName(slot int) string { return fmt.Sprintf("prog%d", slot) }

// readConfig reads the settings of a dispatcher.
func readConfig(program *ebpf.Program) (config dispatcherConfig, err error) {
	info, err := program.Info()
	if err != nil {
		return config, err
	}
	maps, _ := info.MapIDs()
	if info.Name != dispatcherProgXdpDispatcher || len(maps) != 1 {
		return config, ErrNoDispatcher
	}
	kernelMap, err := ebpf.NewMapFromID(maps[0])
	if err != nil {
		return config, err
	}
	defer kernelMap.Close()
	value, err := kernelMap.LookupBytes(uint32(0))
	if err != nil {
		return config, fmt.Errorf("read the dispatcher's settings: %w", err)
	}
	return parseConfig(value)
}

// parseConfig reads the value of a dispatcher's map of settings.
func parseConfig(value []byte) (config dispatcherConfig, err error) {
	if len(value) < 2 || value[0] != magic {
		return config, ForeignError{"dispatcher of version 1"}
	}
	if configSizes[value[1]] != len(value) {
		return config, ForeignError{fmt.Sprintf("dispatcher of version %d", value[1])}
	}
	rest, err := binary.Decode(value, binary.NativeEndian, &config)
	if err != nil {
		return config, fmt.Errorf("read the dispatcher's settings: %w", err)
	}
	if rest < len(value) && value[rest] != 0 {
		return config, ForeignError{"it is bound to the device"}
	}
	if int(config.Count) > len(config.Next) {
		return config, ForeignError{fmt.Sprintf("dispatcher of %d programs", config.Count)}
	}
	return config, nil
}
