package core

import "github.com/nereid-serving/nereid/libs/mono"

// link chains items in a list. It is embedded in the item.
type link struct {
	prev, next *Item
	in         *list
}

// The lists that an item can be in. It can be in several at once.
const (
	ofQueue = iota
	ofGateway
	ofSequence
	ofParent
	lists
)

// list is a doubly linked list of items: first in, first out, and any item can leave from the middle.
type list struct {
	by         int // which of an item's links
	head, tail *Item
	n          int
}

func (l *list) push(it *Item) {
	it.links[l.by] = link{prev: l.tail, in: l}
	if l.tail == nil {
		l.head = it
	} else {
		l.tail.links[l.by].next = it
	}
	l.tail = it
	l.n++
}

// insert puts an item before next, or at the end if next is nil.
func (l *list) insert(it, next *Item) {
	if next == nil {
		l.push(it)
		return
	}
	prev := next.links[l.by].prev
	it.links[l.by] = link{prev: prev, next: next, in: l}
	next.links[l.by].prev = it
	if prev == nil {
		l.head = it
	} else {
		prev.links[l.by].next = it
	}
	l.n++
}

func (l *list) remove(it *Item) {
	k := &it.links[l.by]
	if k.in != l {
		return
	}
	if k.prev == nil {
		l.head = k.next
	} else {
		k.prev.links[l.by].next = k.next
	}
	if k.next == nil {
		l.tail = k.prev
	} else {
		k.next.links[l.by].prev = k.prev
	}
	*k = link{}
	l.n--
}

// oldest returns when the first item arrived; 0 if there is none.
func (l *list) oldest() mono.Time {
	if l.head == nil {
		return 0
	}
	return l.head.Enqueued
}
