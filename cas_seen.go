package pawl

import "github.com/pawl-go/pawl/internal/document"

// The version that this process saw last, which the next batch starts from and watchers get.

// advance remembers d unless a newer version was seen.
func (s *stored) advance(d *document.Doc) {
	for {
		cur := s.seen.Load()
		if cur != nil && cur.Version > d.Version {
			return
		}
		if cur != nil && cur.Same(d) {
			d.CacheFrom(cur) // a version has one content: no need to decode it again
		}
		if s.seen.CompareAndSwap(cur, d) {
			if cur == nil || !cur.Same(d) {
				s.group.Load().Notify()
			}
			return
		}
	}
}

// replace puts won, which is current by the store's word, in the place of base, whatever their
// versions say; if another version was seen meanwhile, it advances to won.
func (s *stored) replace(base, won *document.Doc) {
	if s.seen.CompareAndSwap(base, won) {
		s.group.Load().Notify()
		return
	}
	s.advance(won)
}

// renewed puts d, which is base with another expiry, in its place.
func (s *stored) renewed(base, d *document.Doc) {
	if s.seen.CompareAndSwap(base, d) {
		s.group.Load().Notify() // a watcher may wait for the expiry
	}
}
