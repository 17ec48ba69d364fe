package disk

import (
	"os"
	"slices"
)

// sector is the number of bytes that reach the disk together.
const sector = 512

// inode is the content of a file.
type inode struct {
	data       []byte  // as processes see it
	synced     []byte  // on the disk for certain
	pending    []piece // changes that may not have reached the disk, in order: all of them make data of synced
	forgotten  bool    // a sync of it has failed
	syncs      int     // syncs after a write
	made, mode os.FileMode
}

// piece is a change of a file that reaches the disk as a whole or not at all: at most one sector, or a
// new size.
type piece struct {
	at   int
	data []byte // nil: at is the new size
}

func (p piece) apply(content []byte) []byte {
	if p.data == nil {
		return resized(content, p.at)
	}
	if end := p.at + len(p.data); end > len(content) {
		content = resized(content, end)
	}
	copy(content[p.at:], p.data)
	return content
}

// resized cuts content, or adds zeros.
func resized(content []byte, size int) []byte {
	if size <= len(content) {
		return content[:size:size]
	}
	return append(content, make([]byte, size-len(content))...)
}

// change applies pieces to what processes see.
func (i *inode) change(pieces ...piece) {
	if len(i.pending) == 0 {
		i.data = slices.Clone(i.data) // it is also synced
	}
	for _, p := range pieces {
		i.data = p.apply(i.data)
	}
	i.pending = append(i.pending, pieces...)
}

// write is cut at the boundaries of sectors. A write that makes the file longer changes its size first.
func (i *inode) write(at int, data []byte) {
	var pieces []piece
	if end := at + len(data); end > len(i.data) {
		pieces = append(pieces, piece{at: end})
	}
	for len(data) > 0 {
		n := min(sector-at%sector, len(data))
		pieces = append(pieces, piece{at, data[:n:n]})
		at, data = at+n, data[n:]
	}
	i.change(pieces...)
}

func (i *inode) truncate(size int) { i.change(piece{at: size}) }

// sync makes all changes durable, unless an earlier sync has failed.
func (i *inode) sync() {
	if i.forgotten {
		return
	}
	if len(i.pending) > 0 {
		i.syncs++
	}
	i.synced, i.pending = i.data, nil
}

// left returns the content after a power failure that let some of the pending pieces reach the disk.
func (i *inode) left(reached func(piece int) bool) []byte {
	content := slices.Clone(i.synced)
	for at, p := range i.pending {
		if reached(at) {
			content = p.apply(content)
		}
	}
	return content
}

// halves returns the first half of the old content and the second half of the new one.
func (i *inode) halves() []byte {
	half := min(len(i.synced), len(i.data)) / 2
	return slices.Concat(i.synced[:half], i.data[half:])
}
