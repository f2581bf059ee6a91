package python

import (
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/python/stub"
)

// reasonOf is the reason of an error of a model by its code.
func reasonOf(code string) errs.Reason {
	switch code {
	case "UNKNOWN":
		return errs.ModelUnknown
	case "NOT_FOUND":
		return errs.ModelFoundNot
	case "INVALID_ARG":
		return errs.ModelRefused
	case "UNAVAILABLE":
		return errs.ModelBusy
	case "UNSUPPORTED":
		return errs.ModelUnsupported
	case "ALREADY_EXISTS":
		return errs.AlreadyExists
	case "CANCELLED":
		return errs.Canceled
	}
	return errs.ExecutionFailed
}

// failure is the error of a model.
func (m *model) failure(e stub.Error) error {
	return errs.New(reasonOf(e.Code), "%s", e.Text).WithModel(m.version.Ref.Name)
}
