# For Buildroot: package/flexcomp/flexcomp.mk, next to a Config.in that depends on BR2_aarch64 and a toolchain with glibc and
# g++ 11 or later. REPOSITORY, COMMIT and VERSION are to be filled in.
FLEXCOMP_VERSION = COMMIT
FLEXCOMP_SITE = https://REPOSITORY
FLEXCOMP_SITE_METHOD = git
FLEXCOMP_SUBDIR = runtime_ext
FLEXCOMP_EXTRA_DOWNLOADS = https://files.pythonhosted.org/…/apache_tvm_ffi-VERSION-….whl
FLEXCOMP_INSTALL_STAGING = YES
FLEXCOMP_CONF_OPTS = -DFLEXCOMP_TVM_FFI=$(@D)/ffi/tvm_ffi
define FLEXCOMP_UNPACK
	unzip -q -d $(@D)/ffi $(FLEXCOMP_DL_DIR)/apache_tvm_ffi-*.whl
endef
FLEXCOMP_POST_EXTRACT_HOOKS += FLEXCOMP_UNPACK
$(eval $(cmake-package))
