package core

import "fmt"

// String returns the name of the kind, for display.
func (k DecisionKind) String() string {
	names := [...]string{
		Dispatch: "Dispatch", Refuse: "Refuse", Fail: "Fail", HandOff: "HandOff", Complete: "Complete", Abort: "Abort", Requeue: "Requeue",
		UnknownBatch: "UnknownBatch", InstanceRetired: "InstanceRetired", Record: "Record", WorkerGone: "WorkerGone", Wait: "Wait", Free: "Free", Again: "Again",
	}
	if k == 0 || int(k) >= len(names) {
		return fmt.Sprintf("DecisionKind(%d)", uint8(k))
	}
	return names[k]
}

// String returns the name of the kind, for display.
func (k EventKind) String() string {
	names := [...]string{
		Submit: "Submit", Cancel: "Cancel", Configure: "Configure", Remove: "Remove", Learned: "Learned", Granted: "Granted", Retire: "Retire",
		InstanceFree: "InstanceFree", UnitDone: "UnitDone", MemoryReported: "MemoryReported", BatchReturned: "BatchReturned",
		BecomeLeader: "BecomeLeader", StepDown: "StepDown", LeaseHeld: "LeaseHeld", LeaseEnded: "LeaseEnded",
		WorkerConnected: "WorkerConnected", WorkerDisconnected: "WorkerDisconnected", WorkerLost: "WorkerLost", GatewayDisconnected: "GatewayDisconnected", Recorded: "Recorded", Tick: "Tick",
	}
	if k == 0 || int(k) >= len(names) {
		return fmt.Sprintf("EventKind(%d)", uint8(k))
	}
	return names[k]
}
