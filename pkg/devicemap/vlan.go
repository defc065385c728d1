package devicemap

import (
	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
)

// MaxTags is how many tags a frame may have that XDP serves.
const MaxTags = 2

// Tag is a tag of IEEE 802.1Q without its priority.
type Tag struct {
	Protocol uint16 // 0x8100 or 0x88a8
	ID       uint16
}

// Tags are those of a frame, the outer one first; the zero value of one is none.
type Tags [MaxTags]Tag

func (t Tags) entry() (entry [MaxTags]bpf.SockBlTag) {
	for i := range t {
		entry[i].Protocol, entry[i].Id = bpf.Hton16(t[i].Protocol), bpf.Hton16(t[i].ID)
	}
	return entry
}

func tagsOf(entry [MaxTags]bpf.SockBlTag) (t Tags) {
	for i := range t {
		t[i] = Tag{bpf.Hton16(entry[i].Protocol), bpf.Hton16(entry[i].Id)}
	}
	return t
}

// Frames are those that XDP gets at a device with such tags.
type Frames struct {
	Ifindex int
	Tags    Tags
}

func (f *Frames) key() bpf.SockBlVlanKey {
	return bpf.SockBlVlanKey{Ifindex: uint32(f.Ifindex), Tag: f.Tags.entry()}
}

// Frames returns which frames belong to another device than the one at which XDP gets
// them: to that of an ID.
func (t Table) Frames() (map[Frames]uint32, error) {
	list := make(map[Frames]uint32)
	err := bpfmap.Each(t.maps.BlVlan, func(key *bpf.SockBlVlanKey, id *uint32) {
		list[Frames{int(key.Ifindex), tagsOf(key.Tag)}] = *id
	})
	return list, err
}

// SetFrames replaces what [Table.Frames] returns.
func (t Table) SetFrames(want map[Frames]uint32) error {
	have, err := t.Frames()
	if err != nil {
		return err
	}
	for f := range have {
		if _, ok := want[f]; ok {
			continue
		}
		key := f.key()
		if err := bpfmap.Remove(t.maps.BlVlan, &key); err != nil {
			return err
		}
	}
	for f, id := range want {
		if have[f] == id {
			continue
		}
		key := f.key()
		if err := bpfmap.Put(t.maps.BlVlan, &key, id); err != nil {
			return err
		}
	}
	return nil
}
