package core

import "github.com/nereid-serving/nereid/libs/mono"

// link chains waiting items; it lies inside the item.
type link struct {
	prev, next *Item
	in         *list
}

// list is a doubly linked list of items: first in, first out, and any item
// can leave from the middle.
type list struct {
	head, tail *Item
	n          int
}

func (l *list) push(it *Item) {
	it.link = link{prev: l.tail, in: l}
	if l.tail == nil {
		l.head = it
	} else {
		l.tail.next = it
	}
	l.tail = it
	l.n++
}

func (l *list) remove(it *Item) {
	if it.in != l {
		return
	}
	if it.prev == nil {
		l.head = it.next
	} else {
		it.prev.next = it.next
	}
	if it.next == nil {
		l.tail = it.prev
	} else {
		it.next.prev = it.prev
	}
	it.link = link{}
	l.n--
}

// oldest is when the first item came; 0 if there is none.
func (l *list) oldest() mono.Time {
	if l.head == nil {
		return 0
	}
	return l.head.Enqueued
}
