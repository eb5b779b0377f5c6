// All that a translated kernel includes.
#pragma once
#include "abi.h"
#include "bits.h"
#include "integer.h"
#include "exact.h"
#include "half.h"
#include "float.h"
#include "memory.h"
#include "copy.h"
#include "group.h"
